"""Tokens: the one that holds, and all the others."""

import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from structlog.testing import capture_logs

from kproxy.common.errors import CannotStart
from kproxy.config.listeners import ListenerConfig
from kproxy.security import jwks
from kproxy.security.jwks import KeySet
from kproxy.security.oauth import INVALID, BadKeys, Claims, Exchange, Issuers, Tokens, keys_of
from kproxy.security.scram import BadLogin
from kproxy.server import served_listener
from kproxy.server.admission import Admission
from kproxy.server.served_listener import served_listeners
from tests.harness import eventually
from tests.securing import AUDIENCE, ISSUER, PARTNER, Authority, Issuer, bearer

NOW = int(time.time())
END = NOW + 50_000  # a run of all tests is over by then
CLAIMS = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "iat": NOW, "exp": END}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


def tokens(issuer: Issuer) -> Tokens:
    keys = keys_of(issuer.path.read_bytes())
    return Tokens(ISSUER, AUDIENCE, lambda: keys)


def encoded(part: Any) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return jwt.utils.base64url_encode(data).decode()


def by_hand(issuer: Issuer, payload: bytes, header: dict[str, Any] | None = None) -> str:
    """Return a token with any payload, signed well."""
    head = encoded(header or {"alg": "RS256", "kid": "one"})
    signed = f"{head}.{encoded(payload)}"
    algorithm = jwt.get_algorithm_by_name("RS256")
    return f"{signed}.{encoded(algorithm.sign(signed.encode(), issuer.key))}"


def test_a_token_says_who(issuer: Issuer) -> None:
    found = tokens(issuer).check(issuer.token("alice"))
    assert found.name == "alice"
    assert 290 < found.expires_s - time.time() < 310


def _public(issuer: Issuer) -> bytes:
    return issuer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _hmac_with_the_public_key(issuer: Issuer) -> str:
    signed = f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{encoded(CLAIMS)}"
    return f"{signed}.{encoded(hmac.digest(_public(issuer), signed.encode(), hashlib.sha256))}"


def _with_a_key_of_its_own(issuer: Issuer) -> str:
    key = rsa.generate_private_key(65537, 2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return jwt.encode(CLAIMS, key, "RS256", headers={"kid": "one", "jwk": public})


BAD: dict[str, Callable[[Issuer], str]] = {
    "no token": lambda i: "",
    "a word": lambda i: "alice",
    "dots": lambda i: "...",
    "not signed": lambda i: jwt.encode(CLAIMS, None, "none", headers={"kid": "one"}),
    "hmac": _hmac_with_the_public_key,
    "its own key": _with_a_key_of_its_own,
    "an address of keys": lambda i: jwt.encode(
        CLAIMS, rsa.generate_private_key(65537, 2048), "RS256",
        headers={"kid": "one", "jku": "https://127.0.0.1/"},
    ),
    "another curve": lambda i: jwt.encode(
        CLAIMS, ec.generate_private_key(ec.SECP256R1()), "ES256", headers={"kid": "one"}
    ),
    "unknown key": lambda i: jwt.encode(CLAIMS, i.key, "RS256", headers={"kid": "two"}),
    "critical": lambda i: jwt.encode(
        CLAIMS, i.key, "RS256", headers={"kid": "one", "crit": ["x"], "x": 1}
    ),
    "changed": lambda i: i.token("alice").replace(".", ".e", 1),
    "over": lambda i: i.token("alice", -100),
    "not yet": lambda i: i.token("alice", nbf=END),
    "issued later": lambda i: i.token("alice", 200_000, iat=END),
    "another issuer": lambda i: i.token("alice", iss="https://other"),
    "an issuer that begins so": lambda i: i.token("alice", iss=ISSUER + ".evil"),
    "another audience": lambda i: i.token("alice", aud="other"),
    "forever": lambda i: i.token("alice", 1e11),
    "end before begin": lambda i: i.token("alice", -5),
    "huge time": lambda i: by_hand(
        i, json.dumps(CLAIMS).replace(str(END), "1" + "0" * 400).encode()
    ),
    "infinite time": lambda i: by_hand(
        i, json.dumps(CLAIMS).replace(str(END), "Infinity").encode()
    ),
    "time of text": lambda i: by_hand(i, json.dumps(CLAIMS | {"exp": str(END)}).encode()),
    "time that is true": lambda i: by_hand(i, json.dumps(CLAIMS | {"iat": True}).encode()),
    "no name": lambda i: i.token(""),
    "a name that is a number": lambda i: by_hand(i, json.dumps(CLAIMS | {"sub": 1}).encode()),
    "half a character": lambda i: by_hand(
        i, json.dumps(CLAIMS | {"sub": "\ud800"}).encode()
    ),
    "a zero byte": lambda i: i.token("alice\0"),
    "a long name": lambda i: i.token("a" * 2000),
    "deep": lambda i: by_hand(i, b'{"a":' * 5000),
    "a list": lambda i: by_hand(i, b"[]"),
    "deep header": lambda i: encoded(b'{"a":' * 5000) + ".e30.AA",
    **{
        f"without {name}": lambda i, name=name: by_hand(  # type: ignore[misc]
            i, json.dumps({k: v for k, v in CLAIMS.items() if k != name}).encode()
        )
        for name in CLAIMS
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_tokens_that_do_not_hold(kind: str, issuer: Issuer) -> None:
    with pytest.raises(BadLogin) as refused:
        tokens(issuer).check(BAD[kind](issuer))
    assert ("expired" in str(refused.value)) == (kind == "over")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"\x01",
        b"n,,\x01auth=Bearer " + b"x" * 20_000 + b"\x01\x01",
    ],
)
def test_messages_that_are_none_end_in_two_steps(message: bytes, issuer: Issuer) -> None:
    exchange = Exchange(tokens(issuer))
    assert exchange.step(message) == INVALID
    for again in (b"\x01", bearer(issuer.token("alice"))):
        with pytest.raises(BadLogin):
            exchange.step(again)
    assert exchange.bearer is None


def test_authorization_id_must_be_the_tokens_subject(issuer: Issuer) -> None:
    for name, good in (("alice", True), ("bob", False)):
        exchange = Exchange(tokens(issuer))
        message = bearer(issuer.token("alice")).replace(b"n,,", b"n,a=" + name.encode() + b",")
        assert (exchange.step(message) == b"") is good


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 1}',
        b'{"keys": [1]}',
        b'{"keys": [' + b"{}," * 200 + b"{}]}",
        b"[" * 100_000,
    ],
)
def test_documents_that_are_no_keys(document: bytes) -> None:
    with pytest.raises(BadKeys):
        keys_of(document)


def test_keys_that_sign_with_a_shared_secret_are_none() -> None:
    shared = {"kty": "oct", "k": "c2VjcmV0", "kid": "one", "alg": "HS256"}
    rsa_as_hmac = {"kty": "RSA", "n": "AQAB", "e": "AQAB", "alg": "HS256"}
    assert keys_of(json.dumps({"keys": [shared, rsa_as_hmac]}).encode()) == []


def test_keys_are_read_again_where_one_is_missing(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    now = [0.0]
    keys = KeySet(str(issuer.path), lambda: now[0])
    asked: list[bool] = []
    checks = Tokens(ISSUER, AUDIENCE, keys.keys)
    checks.unknown_key = lambda: asked.append(True)
    issuer.publish("two")
    with pytest.raises(BadLogin):
        checks.check(jwt.encode(CLAIMS, issuer.key, "RS256", headers={"kid": "two"}))
    assert asked == [True]
    keys.read()
    assert checks.check(jwt.encode(CLAIMS, issuer.key, "RS256", headers={"kid": "two"}))
    issuer.path.write_text("{")
    with pytest.raises(BadKeys):
        keys.read()
    assert keys.keys(), "the old ones stay"


def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="oauth_jwks"):
        KeySet(str(tmp_path / "absent"))


class Address:
    """Answers https requests with `answer`, in parts, with pauses between them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.parts: list[bytes] = []
        self.pause_s = 0.0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.authority.server)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://localhost:{self._listening.getsockname()[1]}/keys"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def says(self, document: bytes) -> None:
        self.parts = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(document), document]

    def _serve(self) -> None:
        with suppress(OSError), self._listening:
            while True:
                one, _ = self._listening.accept()
                with suppress(OSError), self._context.wrap_socket(one, server_side=True) as wrapped:
                    wrapped.recv(65536)
                    for part in self.parts:
                        wrapped.sendall(part)
                        time.sleep(self.pause_s)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    made = Address(tmp_path / "certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority.ca))
    yield made
    made.close()


NO_ANSWERS = {
    "a chunked body that is cut": [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\ncut"
    ],
    "no status": [b"nonsense\r\n\r\n"],
    "nothing": [],
    "a header without end": [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000],
    "a redirect": [b"HTTP/1.1 302 Found\r\nLocation: https://[\r\nContent-Length: 0\r\n\r\n"],
}


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_answers_that_are_none_end_no_reading(
    kind: str, address: Address, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "_SOONEST_S", 0.0)
    address.parts = NO_ANSWERS[kind]
    keys = KeySet(address.url)
    assert not keys.keys()
    address.says(issuer.path.read_bytes())
    keys.start()
    try:
        eventually(keys.keys)
        address.parts = NO_ANSWERS[kind]
        keys.want()
        time.sleep(0.3)
        assert keys.keys(), "the old ones stay"
        address.says(issuer.path.read_bytes().replace(b'"one"', b'"new"'))
        keys.want()
        eventually(lambda: keys.keys()[0].name == "new")
    finally:
        keys.close()


def test_an_answer_that_drips_is_waited_for_so_long(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "_DEADLINE_S", 0.5)
    head = [b"HTTP/1.1 200 OK\r\n"]
    address.pause_s = 0.2
    for drops in (head + [b"X: y\r\n"] * 50, head + [b"Content-Length: 99\r\n\r\n"] + [b"{"] * 50):
        address.parts = drops
        began = time.monotonic()
        with capture_logs() as told:
            keys = KeySet(address.url)
            keys.start()
            keys.wait(30)
            keys.close()
        assert time.monotonic() - began < 8, "all of it takes ten"
        assert told[0]["reason"] == "it took longer than 0.5 s"


def test_keys_are_read_at_once_where_that_is_asked_for(tmp_path: Path) -> None:
    """One is withdrawn: SIGHUP, however lately they were read."""
    issuer = Issuer(tmp_path)
    keys = KeySet(str(issuer.path))
    keys.start()
    issuer.publish("two")
    keys.want()
    time.sleep(0.2)
    assert keys.keys()[0].name == "one"
    keys.reload()
    eventually(lambda: keys.keys()[0].name == "two")
    keys.close()


def test_few_keys_are_tried_for_a_token_that_names_none(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    mine = keys_of(issuer.path.read_bytes())[0]
    others = [keys_of(Issuer(issuer.path.parent / "o").path.read_bytes())[0]._replace(name="o")]
    checks = Tokens(ISSUER, AUDIENCE, lambda: others * 50)
    decode = jwt.decode
    monkeypatch.setattr(jwt, "decode", lambda *a, **more: tried.append(1) or decode(*a, **more))
    nameless = jwt.encode(CLAIMS, issuer.key, "RS256")
    with pytest.raises(BadLogin):
        checks.check(nameless)
    assert 0 < len(tried) < 5
    assert Tokens(ISSUER, AUDIENCE, lambda: [*others, mine]).check(nameless).name == "alice"


# -- who it is, and what for: by claims that issuers have

KEYCLOAK: dict[str, Any] = {
    "sub": "7f3d2f6e-8c1a-4f0e-9d55-0d5f0f1c2a3b", "aud": ["account", AUDIENCE], "typ": "Bearer",
    "azp": "orders", "jti": "b1946ac9", "acr": "1", "scope": "openid queues profile",
    "preferred_username": "alice", "email_verified": True, "sid": "1",
    "realm_access": {"roles": ["offline_access", "queue-user"]},
    "resource_access": {"account": {"roles": ["view-profile"]}, "my.app": {"roles": ["queues"]}},
    "resource_access.my.app": ["whole"],
}  # fmt: skip
"""An access token of Keycloak, but for whom and until when it is."""
ENTRA: dict[str, Any] = {
    "sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ", "aud": AUDIENCE, "ver": "2.0",
    "tid": "9188040d-6c67-4c5b-b112-36a304b66dad", "oid": "00000000-0000-0000-66f3-3332eca7ea81",
    "azp": "e4d0d0e5", "azpacr": "1", "nbf": NOW - 5, "preferred_username": "alice@example.com",
    "scp": "Queues.Read Queues.Write", "roles": ["Queue.Worker"], "uti": "x", "rh": "0.A",
}  # fmt: skip
"""One of Entra (v2.0), with what a user and what an application has."""


def claiming(issuer: Issuer, claims: Claims, **token: Any) -> str:
    keys = keys_of(issuer.path.read_bytes())
    subject = token.pop("sub")
    made = issuer.token(subject, **token)
    return Tokens(ISSUER, AUDIENCE, lambda: keys, claims).check(made).name


@pytest.mark.parametrize(
    ("token", "claims", "name"),
    [
        (KEYCLOAK, Claims(), KEYCLOAK["sub"]),
        (KEYCLOAK, Claims("preferred_username"), "alice"),
        (KEYCLOAK, Claims("azp", "scope", ("queues",)), "orders"),
        (KEYCLOAK, Claims("preferred_username", "scope", ("queues", "openid")), "alice"),
        (KEYCLOAK, Claims("azp", "realm_access.roles", ("queue-user",)), "orders"),
        (KEYCLOAK, Claims("azp", "resource_access.my.app.roles", ("queues",)), "orders"),
        (KEYCLOAK, Claims("azp", "resource_access.my.app", ("whole",)), "orders"),
        (KEYCLOAK, Claims("azp", prefix="partner-"), "partner-orders"),
        (ENTRA, Claims("oid"), ENTRA["oid"]),
        (ENTRA, Claims("preferred_username", "scp", ("Queues.Write",)), "alice@example.com"),
        (ENTRA, Claims("azp", "roles", ("Queue.Worker",)), "e4d0d0e5"),
    ],
)
def test_a_chosen_claim_says_who(
    issuer: Issuer, token: dict[str, Any], claims: Claims, name: str
) -> None:
    assert claiming(issuer, claims, **token) == name


@pytest.mark.parametrize(
    ("token", "claims"),
    [
        (KEYCLOAK, Claims("oid")),
        (KEYCLOAK, Claims("email_verified")),
        (KEYCLOAK, Claims("realm_access")),
        (KEYCLOAK | {"preferred_username": ""}, Claims("preferred_username")),
        (KEYCLOAK | {"preferred_username": ["alice"]}, Claims("preferred_username")),
        (KEYCLOAK, Claims(scopes=("queue",))),
        (KEYCLOAK, Claims(scopes=("openid queues",))),
        (KEYCLOAK, Claims(scope="scp", scopes=("queues",))),
        (KEYCLOAK, Claims(scope="realm_access", scopes=("roles",))),
        (KEYCLOAK, Claims(scope="realm_access.roles", scopes=("queues",))),
        (KEYCLOAK, Claims(scope="realm_access.roles.queue-user", scopes=("queue-user",))),
        (KEYCLOAK, Claims(scope=".realm_access.roles", scopes=("queue-user",))),
        (KEYCLOAK, Claims("resource_access.account.roles")),
        (ENTRA, Claims("oid", "scp", ("Queues.Read", "Queues.Delete"))),
        (ENTRA | {"roles": [["Queue.Worker"]]}, Claims("oid", "roles", ("Queue.Worker",))),
    ],
)
def test_a_claim_that_is_not_there_lets_nobody_in(
    issuer: Issuer, token: dict[str, Any], claims: Claims
) -> None:
    with pytest.raises(BadLogin):
        claiming(issuer, claims, **token)


# -- several issuers


@pytest.fixture(scope="module")
def partner(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("partner"))


def both(issuer: Issuer, partner: Issuer) -> Issuers:
    """Return the checks of two issuers, whose keys have one name, for an audience each."""
    own, other = (keys_of(one.path.read_bytes()) for one in (issuer, partner))
    prefixed = Claims(prefix="partner-")
    return Issuers(
        [Tokens(ISSUER, AUDIENCE, lambda: own), Tokens(PARTNER, "queues", lambda: other, prefixed)]
    )


def test_each_issuer_says_who_its_own_are(issuer: Issuer, partner: Issuer) -> None:
    checks = both(issuer, partner)
    assert checks.check(issuer.token("alice")).name == "alice"
    assert checks.check(partner.token("alice", iss=PARTNER, aud="queues")).name == "partner-alice"


@pytest.mark.parametrize(
    ("by_partner", "claims"),
    [
        (True, {}),
        (True, {"iss": PARTNER}),
        (True, {"iss": "https://other.example", "aud": "queues"}),
        (True, {"iss": PARTNER + "/", "aud": "queues"}),
        (False, {"iss": PARTNER, "aud": "queues"}),
        (False, {"aud": "queues"}),
    ],
)
def test_an_issuer_speaks_for_no_other(
    issuer: Issuer, partner: Issuer, by_partner: bool, claims: dict[str, str]
) -> None:
    with pytest.raises(BadLogin):
        both(issuer, partner).check((partner if by_partner else issuer).token("alice", **claims))


@pytest.mark.parametrize(
    ("prefix", "name", "allowed"),
    [
        ("", "partner-alice", False),
        ("", "partner-", False),
        ("", "partner-eu-alice", False),
        ("", "partner", True),
        ("partner-", "alice", True),
        ("partner-", "eu-alice", False),
        ("partner-", "partner-alice", True),
        ("partner-eu-", "alice", True),
    ],
)
def test_no_issuer_names_users_of_another(
    issuer: Issuer, prefix: str, name: str, allowed: bool
) -> None:
    """FAULT: an issuer without a prefix named `partner-alice`, and was the partner's alice."""
    prefixes = frozenset(("", "partner-", "partner-eu-"))
    claims = Claims(prefix=prefix, prefixes=prefixes)
    if allowed:
        assert claiming(issuer, claims, sub=name) == prefix + name
        return
    with pytest.raises(BadLogin, match="begins as names of another issuer do"):
        claiming(issuer, claims, sub=name)


def test_issuers_that_do_not_answer_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: each of them, at each listener, had the start wait for up to half a minute."""
    answers = threading.Event()
    monkeypatch.setattr(served_listener, "_KEYS_S", 0.3)
    monkeypatch.setattr(KeySet, "read", lambda self: answers.wait(5))
    more = [MORE | {"issuer": str(number)} for number in range(4)]
    began = time.monotonic()
    found = served_listeners([_listener(oauth_issuers=more)] * 2, Admission(10, 10))
    took_s = time.monotonic() - began
    for one in found:
        one.close()
    answers.set()
    assert took_s < 4, "one alone takes five"


@pytest.mark.parametrize("said", [None, 1, [ISSUER], {ISSUER: 1}])
def test_an_issuer_is_a_name(issuer: Issuer, partner: Issuer, said: Any) -> None:
    with pytest.raises(BadLogin):
        both(issuer, partner).check(by_hand(issuer, json.dumps(CLAIMS | {"iss": said}).encode()))


@pytest.mark.parametrize("kind", BAD)
def test_bad_tokens_do_not_hold_where_there_are_two_issuers(
    kind: str, issuer: Issuer, partner: Issuer
) -> None:
    with pytest.raises(BadLogin):
        both(issuer, partner).check(BAD[kind](issuer))


def _listener(**settings: Any) -> ListenerConfig:
    given = {"listen": "127.0.0.1:9092", "protocol": "SASL_PLAINTEXT"}
    return ListenerConfig(**given | {"sasl_mechanisms": ("OAUTHBEARER",)} | settings)


OWN = {"oauth_jwks": "a.json", "oauth_issuer": ISSUER, "oauth_audience": AUDIENCE}
MORE = {"issuer": PARTNER, "jwks": "https://partner.example/keys", "audience": "queues"}


def test_a_listener_has_issuers_of_its_own_and_more() -> None:
    assert [one.issuer for one in _listener(**OWN, oauth_issuers=[MORE]).issuers] == [
        ISSUER, PARTNER,
    ]  # fmt: skip
    assert [one.issuer for one in _listener(oauth_issuers=[MORE]).issuers] == [PARTNER]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"oauth_issuers": [MORE], "oauth_jwks": "a.json"},
        {"oauth_issuers": [MORE], "oauth_scopes": ("queues",)},
        {"oauth_issuers": [MORE, MORE]},
        OWN | {"oauth_issuers": [MORE | {"issuer": ISSUER}]},
        {"oauth_issuers": [MORE | {"jwks": "http://partner.example/keys"}]},
        {"oauth_issuers": [MORE | {"scopes": ("",)}]},
        {"oauth_issuers": [MORE | {"issuer": str(number)} for number in range(17)]},
        {"oauth_issuers": [MORE], "sasl_mechanisms": ("PLAIN",)},
    ],
)
def test_issuers_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"oauth|OAUTHBEARER|issuers"):
        _listener(**settings)
