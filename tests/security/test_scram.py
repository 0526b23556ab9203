"""SCRAM: the RFC's own exchange, and messages that are none of it."""

import base64
from collections import Counter
from typing import Any

import pytest

from kproxy.security import scram
from kproxy.security.mechanisms import Users, offered
from kproxy.security.scram import BadLogin, Client, Credentials, Server, Shape

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NAME = "SCRAM-SHA-256"
ALICE = scram.of_password(NAME, b"pencil", SALT, 4096)


class Rows:
    """Users' credentials, by name, and by name and mechanism."""

    def __init__(self, held: dict[Any, Any], secret: bytes = b"s") -> None:
        self.held = held
        self.salt_secret = secret
        self.shapes: dict[str, Counter[Shape]] = {}

    def credentials(self, user: str, mechanism: str) -> Any:
        return self.held.get(user) or self.held.get((user, mechanism))


def found(user: str) -> Credentials:
    return ALICE if user == "user" else scram.nobodys(NAME, user, b"secret")


def test_the_exchange_of_rfc_7677() -> None:
    server = Server(NAME, found, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = Client(NAME, "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.step(client.first())
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.final(challenge)
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    answer = server.step(final)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(answer)
    assert server.user == "user"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b",",
        b",,",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc",
        b"n,,r=abc,n=user",
        b"x,,n=user,r=a",
        b"p=tls-unique,,n=user,r=a",
        b"n,a=bob,n=user,r=a",
        b"n,a=,n=user,r=a",
        b"n,bob,n=user,r=a",
        b"n,,n=,r=a",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=a",
        b"n,,n=user=2,r=a",
        b"n,,n=user=2c,r=a",
        b"n,,m=must,n=user,r=a",
        b"n,,n=user,r=a,tokenauth=true",
        b"n,,n=user,r=a,x",
        b"\xff\xfe",
        b"n,,n=user\0,r=a",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=\xc3\xa4",
        b"n,,n=" + b"u" * 5000 + b",r=a",
        b"n,,n=user,r=" + b"r" * 5000,
    ],
)
def test_a_first_message_that_is_none(message: bytes) -> None:
    with pytest.raises(BadLogin):
        Server(NAME, found).step(message)


def exchange(user: str = "user", password: str = "pencil") -> tuple[Server, bytes]:
    """Return a server and a client's last message to it."""
    server, client = Server(NAME, found), Client(NAME, user, password)
    return server, client.final(server.step(client.first()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c="),
        (b"c=", b"x="),
        (b"r=", b"r=x"),
        (b",r=", b",q="),
        (b",p=", b",q="),
        (b",p=", b",p=AAAA"),
        (b",p=", b",p=="),
        (b",p=", b",p=%"),
        (b"c=biws,", b""),
    ],
)
def test_a_last_message_that_was_changed(old: bytes, new: bytes) -> None:
    server, final = exchange()
    with pytest.raises(BadLogin):
        server.step(final.replace(old, new, 1))


def test_a_proof_serves_once() -> None:
    _, final = exchange()
    another, _ = exchange()
    with pytest.raises(BadLogin, match="nonce"):
        another.step(final)


@pytest.mark.parametrize(("user", "password"), [("user", "wrong"), ("nobody", "pencil")])
def test_nobody_learns_who_exists(user: str, password: str) -> None:
    server, final = exchange(user, password)
    with pytest.raises(BadLogin, match="an unknown user or a wrong password"):
        server.step(final)


def test_unknown_user_has_the_same_salt_each_time_and_on_each_worker() -> None:
    users = [Users(Rows({}, secret)) for secret in (b"a", b"a", b"b")]
    salts = [one.credentials("bob", NAME).salt for one in users]
    assert salts[0] == salts[1] != salts[2]
    assert users[0].credentials("eve", NAME).salt != salts[0]


@pytest.mark.parametrize("salt", [b"\xff" * 7, b"0a1b2c3d4e5f6g7h8i9j0k1l2m"])
def test_unknown_user_looks_like_most_users(salt: bytes) -> None:
    rows = Rows({})
    usual = scram.of_password(NAME, b"x", salt, 8192).shape
    rows.shapes[NAME] = Counter({usual: 3, scram.OURS: 2})
    made = Users(rows).credentials("bob", NAME)
    assert made.shape == usual
    assert made.salt == Users(rows).credentials("bob", NAME).salt
    assert Users(rows).credentials("bob", "SCRAM-SHA-512").shape == scram.OURS


async def test_a_password_of_nobody_is_hashed_as_most_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(scram, "matches", lambda name, password, one: asked.append((name, one)))
    rows = Rows({})
    strong = scram.of_password("SCRAM-SHA-512", b"x", b"salt", 16384).shape
    rows.shapes = {NAME: Counter({scram.OURS: 2}), "SCRAM-SHA-512": Counter({strong: 3})}
    assert not await Users(rows).verify("bob", b"x")
    assert [(name, one.shape) for name, one in asked] == [("SCRAM-SHA-512", strong)]


@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C", "ä", "a b"])
def test_odd_names(name: str) -> None:
    server = Server(NAME, lambda user: ALICE)
    client = Client(NAME, name, "pencil")
    client.check(server.step(client.final(server.step(client.first()))))
    assert server.user == name


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=x,s=AA==,i=4096",
        b"r={r}x,s=%,i=4096",
        b"r={r}x,s=AA==,i=1",
        b"r={r}x,s=AA==,i=999999999",
        b"r={r}x,s=AA==",
        b"r={r},s=AA==,i=4096",
        b"r={r}x,s=AA==,i=-4",
        b"e=other-error",
    ],
)
def test_a_client_is_not_talked_into_anything(challenge: bytes) -> None:
    client = Client(NAME, "user", "pencil", nonce="abc")
    with pytest.raises(BadLogin):
        client.final(challenge.replace(b"{r}", b"abc"))


def test_a_client_believes_no_server_that_does_not_know_the_password() -> None:
    server, client = Server(NAME, found), Client(NAME, "user", "pencil")
    client.final(server.step(client.first()))
    for answer in (b"v=AAAA", b"", b"e=x"):
        with pytest.raises(BadLogin):
            client.check(answer)


async def test_credentials_that_change_amid_an_exchange_hold_no_more() -> None:
    held = {"user": ALICE.value()}
    users = Users(Rows(held))
    exchange = offered((NAME,), users, None)[NAME]("10.0.0.1")
    client = Client(NAME, "user", "pencil")
    final = client.final((await exchange.step(client.first())).token)
    held["user"] = scram.of_password(NAME, b"another").value()
    with pytest.raises(BadLogin, match="meanwhile"):
        await exchange.step(final)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0user\0",
        b"\0\0pencil",
        b"user\0pencil",
        b"\0user\0pencil\0",
        b"bob\0user\0pencil",
        b"\0user\0wrong",
        b"\0bob\0pencil",
        b"\0\xff\0pencil",
        b"\0user\0" + b"p" * 5000,
    ],
)
async def test_plain_tokens_that_let_nobody_in(token: bytes) -> None:
    users = Users(Rows({"user": ALICE.value()}))
    with pytest.raises(BadLogin):
        await offered(("PLAIN",), users, None)["PLAIN"]("10.0.0.1").step(token)


@pytest.mark.parametrize("token", [b"\0user\0pencil", b"user\0user\0pencil"])
async def test_plain(token: bytes) -> None:
    users = Users(Rows({"user": ALICE.value()}))
    step = await offered(("PLAIN",), users, None)["PLAIN"]("10.0.0.1").step(token)
    assert step.identity is not None
    assert step.identity.name == "user"


async def test_a_password_that_is_changed_while_it_is_checked_holds_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = {("user", NAME): ALICE.value()}
    users = Users(Rows(held))
    matches = scram.matches

    def slowly(*arguments: Any) -> bool:
        right = matches(*arguments)
        held["user", NAME] = scram.of_password(NAME, b"another").value()
        return right

    assert await users.verify("user", b"pencil")
    monkeypatch.setattr(scram, "matches", slowly)
    assert not await users.verify("user", b"pencil")
