"""Bytes that no sound client sends, before, in and after handshakes and logins.

Each is refused quietly, in bounded time, and everyone else is served meanwhile.
"""

import hashlib
import hmac
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from random import Random
from typing import Any

import psutil
import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from kproxy.security import oauth, scram
from tests.harness import eventually
from tests.securing import (
    PASSWORD,
    Site,
    all_of,
    authenticate,
    b64,
    bearer,
    framed,
    handshake,
    log_in,
    plain,
    versions_request,
)
from tests.wire import Wire, batch, fetch_values, produce_values

LOGIN_MS = 2000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    with made.running("--login-ms-max", str(LOGIN_MS), "--connections-max", "500"):
        made.add_user("alice")
        made.add_user("bob")
        yield made


@pytest.fixture(autouse=True)
def _others_are_served(site: Site) -> Iterator[None]:
    yield
    with site.wire("OUTSIDE") as wire:  # which waits for half a minute at most
        assert log_in(wire).error_code == 0
        assert wire.produce("q", batch(b"v")).error_code == 0
    assert not site.server.faults()


def told(site: Site, name: str) -> list[dict[str, Any]]:
    """Return events of a name."""
    return [event for event in list(site.server.events) if event["event"] == name]


def request(key: int, version: int, body: bytes = b"", *, flexible: bool = False) -> bytes:
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    return framed(head + (b"\0" if flexible else b"") + body)


HANDSHAKE = encode_request(17, 1, 1, {"mechanism": "PLAIN"})
SCRAM = encode_request(17, 1, 1, {"mechanism": "SCRAM-SHA-256"})
GOOD = encode_request(36, 1, 2, {"auth_bytes": plain("alice", PASSWORD)})
PRODUCE = encode_request(0, 9, 3, produce_values("q", batch(b"stolen")))
FETCH = encode_request(1, 12, 3, fetch_values({("q", 0): 0}))

BEFORE_LOGIN = {
    "nothing": b"",
    "an http request": b"GET / HTTP/1.1\r\nHost: kproxy\r\n\r\n",
    "zeros": bytes(1000),
    "random": Random(5000).randbytes(5000),
    "a length below zero": b"\xff\xff\xff\xff",
    "a huge length": b"\x7f\xff\xff\xff" + bytes(1000),
    "a frame too large for a login": framed(bytes(100_000)),
    "a short frame": framed(b"\0\x12"),
    "a produce": PRODUCE,
    "a fetch": FETCH,
    "metadata": encode_request(3, 1, 1, {"topics": None}),
    "an unknown api": request(999, 0),
    "an api below zero": request(-1 & 0xFFFF, 0),
    "a token without a handshake": GOOD,
    "a handshake in a version too new": request(17, 9),
    "a handshake cut short": request(17, 1, b"\0\x20PL"),
    "a handshake of null": request(17, 1, b"\xff\xff"),
    "a handshake with more behind it": request(17, 1, b"\0\5PLAIN!"),
    "a mechanism that is not offered": encode_request(17, 1, 1, {"mechanism": "GSSAPI"}),
    "a mechanism of odd letters": encode_request(17, 1, 1, {"mechanism": "\0' OR 1=1"}),
    "a long mechanism": encode_request(17, 1, 1, {"mechanism": "P" * 30_000}),
    "a mechanism in small letters": encode_request(17, 1, 1, {"mechanism": "plain"}),
    "a handshake twice": HANDSHAKE * 2,
    "versions twice": versions_request() * 2,
    "versions behind a handshake": HANDSHAKE + versions_request(),
    "a produce behind a handshake": HANDSHAKE + PRODUCE,
    "a produce before the token": HANDSHAKE + PRODUCE + GOOD,
    "a produce behind a refused token": HANDSHAKE
    + encode_request(36, 1, 2, {"auth_bytes": plain("alice", "wrong")}) + PRODUCE,
    "a token in a version too new": HANDSHAKE + request(36, 9),
    "a token below zero": HANDSHAKE + request(36, 1, b"\xff\xff\xff\xff"),
    "a token longer than its frame": HANDSHAKE + request(36, 1, b"\x7f\xff\xff\xff"),
    "an empty token": HANDSHAKE + encode_request(36, 1, 2, {"auth_bytes": b""}),
    "a large token": HANDSHAKE + encode_request(36, 1, 2, {"auth_bytes": bytes(60_000)}),
    "a name of a megabyte": HANDSHAKE + framed(bytes(1 << 20)),
    "another user": HANDSHAKE
    + encode_request(36, 1, 2, {"auth_bytes": plain("alice", PASSWORD, "bob")}),
    "random scram": SCRAM + encode_request(36, 1, 2, {"auth_bytes": Random(500).randbytes(500)}),
    "a last scram message first": SCRAM
    + encode_request(36, 1, 2, {"auth_bytes": b"c=biws,r=abc,p=AAAA"}),
    "scram with channel binding": SCRAM
    + encode_request(36, 1, 2, {"auth_bytes": b"p=tls-unique,,n=alice,r=abc"}),
    "scram by a token of delegation": SCRAM
    + encode_request(36, 1, 2, {"auth_bytes": b"n,,n=alice,r=abc,tokenauth=true"}),
    "plain to scram": SCRAM + GOOD,
    "a raw token cut short": encode_request(17, 0, 1, {"mechanism": "PLAIN"}) + b"\0\0\0\x10abc",
    "a raw token of nothing": encode_request(17, 0, 1, {"mechanism": "PLAIN"}) + bytes(4),
    "a raw token that is large": encode_request(17, 0, 1, {"mechanism": "PLAIN"})
    + framed(bytes(70_000)),
    "a raw token that is wrong": encode_request(17, 0, 1, {"mechanism": "PLAIN"})
    + framed(plain("alice", "wrong")),
    "a request where a raw token is due": encode_request(17, 0, 1, {"mechanism": "PLAIN"})
    + PRODUCE,
}  # fmt: skip


@pytest.mark.parametrize("name", ["SASL", "OUTSIDE"])
@pytest.mark.parametrize("kind", BEFORE_LOGIN)
def test_before_a_login(site: Site, kind: str, name: str) -> None:
    """Refused at once, or when its time is over; nothing is appended or told."""
    with site.wire("INSIDE") as inside:
        inside.metadata("q")
        end = inside.list_offset("q", -1).offset
        with site.wire(name) as wire:
            with suppress(OSError):
                wire.socket.sendall(BEFORE_LOGIN[kind])
            answered = all_of(wire.socket)
        assert len(answered) < 4000
        assert b"stolen" not in answered
        assert inside.list_offset("q", -1).offset == end


TLS_BYTES = {
    "plaintext": versions_request(),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(5000),
    "random": Random(5000).randbytes(5000),
    "nothing": b"",
    "a record without an end": b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc",
    "a hello that is cut": b"\x16\x03\x01\x00\x2f\x01\x00\x00\x2b\x03\x03" + bytes(10),
    "an old hello": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37),
    "an alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "a record too large": b"\x17\x03\x03\xff\xff" + bytes(70_000),
    "a heartbeat": b"\x18\x03\x02\x00\x03\x01\x40\x00",
}


@pytest.mark.parametrize("name", ["TLS", "MUTUAL", "OUTSIDE"])
@pytest.mark.parametrize("kind", TLS_BYTES)
def test_in_a_tls_handshake(site: Site, kind: str, name: str) -> None:
    with socket.create_connection(("127.0.0.1", site.port[name]), timeout=10) as connection:
        with suppress(OSError):
            connection.sendall(TLS_BYTES[kind])
        assert len(all_of(connection)) < 100


def refused(site: Site, name: str, context: ssl.SSLContext) -> bool:
    """Whether a handshake, or the first read behind it, fails."""
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", site.port[name]), timeout=10) as connection:
            with context.wrap_socket(connection) as wrapped:
                wrapped.sendall(versions_request())
                return wrapped.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_tls_is_refused(site: Site, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    assert refused(site, "TLS", context)


@pytest.mark.parametrize("ciphers", ["AES128-SHA", "aNULL", "ECDHE-RSA-AES128-SHA"])
def test_weak_ciphers_are_refused(site: Site, ciphers: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(ciphers + ":@SECLEVEL=0")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert refused(site, "TLS", context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_is_required(site: Site, version: ssl.TLSVersion) -> None:
    context = site.authority.context()
    context.minimum_version = context.maximum_version = version
    assert refused(site, "MUTUAL", context)


def test_a_certificate_of_somebody_elses_is_refused(site: Site) -> None:
    from tests.securing import Authority

    stranger = Authority(site.directory / "stranger").issue("eve", "eve")
    context = site.authority.context()
    context.load_cert_chain(stranger)
    assert refused(site, "MUTUAL", context)


def test_requests_behind_the_end_of_tls_are_not_logged_one_by_one(site: Site) -> None:
    """FAULT: asyncio wrote a line for each answer, past the bounds of what is logged."""
    incoming, outgoing, before = ssl.MemoryBIO(), ssl.MemoryBIO(), len(site.server.raw)
    client = site.authority.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", site.port["TLS"]), 20) as connection:
        while client.version() is None or outgoing.pending:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            connection.sendall(outgoing.read())
            if client.version() is None:
                incoming.write(connection.recv(1 << 16))
        client.write(100 * encode_request(ApiKey.API_VERSIONS, 0, 1, {}))
        with suppress(ssl.SSLError):
            client.unwrap()
        connection.sendall(outgoing.read())
        while connection.recv(1 << 16):
            pass
    assert all(line.startswith("{") for line in site.server.raw[before:])


def test_half_of_a_handshake_is_waited_for_as_long_as_it_may_take(site: Site) -> None:
    """Silence, byte by byte, and a login that never ends: none lasts longer."""
    began = time.monotonic()
    with (
        site.wire("OUTSIDE") as silent,
        socket.create_connection(("127.0.0.1", site.port["OUTSIDE"])) as slow,
    ):
        assert handshake(silent, "SCRAM-SHA-256").error_code == 0
        with suppress(OSError):
            for byte in b"\x16\x03\x01\x40\x00\x01\x00" * 20:
                slow.sendall(bytes([byte]))
                time.sleep(0.05)
        assert all_of(slow) == b""
        assert all_of(silent.socket) == b""
    assert time.monotonic() - began < LOGIN_MS / 1000 + 15


@pytest.mark.parametrize(
    ("name", "address"), [("TLS", "127.0.0.11"), ("OUTSIDE", "127.0.0.12"), ("SASL", "127.0.0.13")]
)
def test_silent_connection_keeps_nobody_out(site: Site, name: str, address: str) -> None:
    """More than there may be connections: they push each other out, and nobody else.

    Each listener is silent to an address of its own, whose first line of a minute is logged.
    """
    at, source = ("127.0.0.1", site.port[name]), (address, 0)
    pushed_out = len(told(site, "login_pushed_out"))
    with site.wire("OUTSIDE") as friend:
        assert log_in(friend).error_code == 0
        held = []
        try:
            for _ in range(520):
                held.append(socket.create_connection(at, timeout=10, source_address=source))
            assert friend.produce("q", batch(b"v")).error_code == 0
            assert _logs_in(site)
            eventually(lambda: len(told(site, "login_pushed_out")) > pushed_out)
        finally:
            for one in held:
                one.close()


@pytest.mark.parametrize("name", ["SASL", "OUTSIDE"])
def test_an_address_pushes_out_its_own(site: Site, name: str) -> None:
    """FAULT: the oldest of all had to leave, whoever came: here the one amid its login."""
    with site.wire(name) as wire, ExitStack() as idle:
        assert handshake(wire, "PLAIN").error_code == 0
        for _ in range(300):
            idle.enter_context(
                socket.create_connection(
                    ("127.0.0.1", site.port[name]), timeout=10, source_address=("127.0.0.2", 0)
                )
            )
        with site.wire(name) as other:  # all of them have been accepted by then
            assert log_in(other).error_code == 0
        assert authenticate(wire, plain("alice", PASSWORD)).error_code == 0


@pytest.mark.parametrize("name", ["SASL", "OUTSIDE"])
def test_silence_from_many_addresses_keeps_no_login_out(site: Site, name: str) -> None:
    """FAULT: with a full house a TLS login was two newcomers of one address, and pushed itself out.

    Half as many addresses as may be newcomers were enough for that.
    """
    with ExitStack() as idle:
        for number in range(130):
            address = ("127.0.0.1", site.port[name])
            source = (f"127.1.0.{number + 1}", 0)
            idle.enter_context(socket.create_connection(address, 10, source_address=source))
            if number % 3:
                idle.enter_context(socket.create_connection(address, 10, source_address=source))
        assert _logs_in(site)


@pytest.mark.parametrize("name", ["SASL", "OUTSIDE"])
def test_a_refused_question_about_versions_may_be_asked_again(site: Site, name: str) -> None:
    """FAULT: it counted as answered, and the next one ended the connection."""
    with site.wire(name) as wire:
        for software, code in (("b@d!", 42), ("-", 42), ("good", 0)):
            asked = {"client_software_name": software, "client_software_version": "1"}
            assert wire.call(18, 3, asked).error_code == code
        assert log_in(wire).error_code == 0


def _logs_in(site: Site) -> bool:
    try:
        with site.wire("OUTSIDE") as wire:
            return not log_in(wire).error_code
    except OSError:
        return False


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.long)])
def test_abandoned_handshakes_and_logins_leave_nothing(site: Site, count: int) -> None:
    process = psutil.Process(site.server.process.pid)

    def abandon(number: int) -> None:
        with socket.create_connection(("127.0.0.1", site.port["OUTSIDE"]), timeout=10) as one:
            if number % 2:
                one.sendall(b"\x16\x03\x01\x40\x00\x01")
            else:
                with suppress(OSError):
                    wrapped = site.authority.context().wrap_socket(one, server_hostname="localhost")
                    wrapped.sendall(HANDSHAKE)
                    wrapped.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(abandon, range(200)))
        eventually(lambda: process.num_fds() < 150, 15)
        before = process.memory_info().rss
        list(pool.map(abandon, range(count)))
    eventually(lambda: process.num_fds() < 150, 15)
    assert process.memory_info().rss - before < 20 << 20


def test_existence_of_a_user_is_not_told(site: Site) -> None:
    """The same answers, the same number of them, for a wrong password and an unknown user."""
    told = []
    for user in ("alice", "nobody"):
        with site.wire("SASL") as wire:
            answer = log_in(wire, "PLAIN", user, "wrong")
            told.append((answer.error_code, answer.error_message))
            assert wire.closed()
        with site.wire("SASL") as wire:
            handshake(wire, "SCRAM-SHA-256")
            first = authenticate(wire, scram.Client("SCRAM-SHA-256", user, "x").first())
            assert first.error_code == 0
            assert b",i=4096" in first.auth_bytes
            last = authenticate(wire, b"c=biws,r=x,p=" + b64(bytes(32)).encode())
            told.append((last.error_code, last.error_message))
            assert wire.closed()
    assert told[:2] == told[2:]
    assert {int(code) for code, _ in told} == {58}


def test_salts_do_not_follow_from_what_anybody_is_told(site: Site) -> None:
    with site.wire("INSIDE") as wire:
        secret = hashlib.sha256(f"kproxy nobody {wire.metadata().cluster_id}".encode()).digest()
    with site.wire("SASL") as wire:
        handshake(wire, "SCRAM-SHA-256")
        first = authenticate(wire, scram.Client("SCRAM-SHA-256", "nobody", "x").first())
    made = scram.nobodys("SCRAM-SHA-256", "nobody", secret)
    old = hmac.digest(secret, b"SCRAM-SHA-256 nobody", "sha256")[:24]
    for salt in (made.salt, old):
        assert f"s={b64(salt)}".encode() not in first.auth_bytes


def test_client_that_leaves_amid_a_login_has_failed(site: Site) -> None:
    """It may have come for the salt alone."""
    before = len(told(site, "login_failed"))
    with site.wire("SASL") as wire:
        handshake(wire, "SCRAM-SHA-256")
        authenticate(wire, scram.Client("SCRAM-SHA-256", "alice", "x").first())
    eventually(lambda: len(told(site, "login_failed")) > before)
    assert told(site, "login_failed")[-1]["user"] == "alice"


def test_a_refused_token_waits_and_is_told_at_once(site: Site) -> None:
    """Not only where the client stays for the last answer."""
    before = len(told(site, "login_failed"))
    with site.wire("SASL") as wire:
        handshake(wire, "OAUTHBEARER")
        began = time.monotonic()
        answer = authenticate(wire, bearer(site.issuer.token("alice", aud="another")))
        assert time.monotonic() - began > 0.09
        assert (answer.error_code, answer.auth_bytes) == (0, oauth.INVALID)
        eventually(lambda: len(told(site, "login_failed")) == before + 1)
        assert authenticate(wire, b"\x01").error_code == 58
    with site.wire("OUTSIDE") as wire:
        assert log_in(wire).error_code == 0
    assert len(told(site, "login_failed")) == before + 1


def test_failed_logins_wait_longer_each_time(site: Site) -> None:
    took, port = [], site.port["SASL"]
    for _ in range(6):
        with site.wire("SASL") as wire:
            wire.socket.close()
            elsewhere = ("127.0.0.77", 0)
            wire.socket = socket.create_connection(("127.0.0.1", port), 20, elsewhere)
            began = time.monotonic()
            assert log_in(wire, "PLAIN", "alice", "wrong").error_code == 58
            took.append(time.monotonic() - began)
    assert took[0] > 0.09
    assert took[-1] > 0.3


AFTER_LOGIN = {
    "a token without a handshake": GOOD,
    "a handshake": HANDSHAKE,
    "a frame over the limit": b"\x7f\xff\xff\xff",
    "random": Random(3000).randbytes(3000),
    "an unknown api": request(999, 0),
    "controlled shutdown": request(7, 0, bytes(4)),
    "a leader and isr request": request(4, 0, bytes(12)),
    "an envelope": request(58, 0, bytes(12), flexible=True),
}


@pytest.mark.parametrize("kind", AFTER_LOGIN)
def test_after_a_login(site: Site, kind: str) -> None:
    """Refused or closed; who it is stays what it was."""
    with site.wire("OUTSIDE") as wire:
        assert log_in(wire).error_code == 0
        wire.socket.sendall(AFTER_LOGIN[kind])
        wire.socket.settimeout(3)
        if kind in ("a token without a handshake", "a handshake"):
            assert b"\0\x22" in wire.receive_frame()[:10]
            assert wire.produce("q", batch(b"v")).error_code == 0
        else:
            assert wire.closed()


def test_a_log_holds_no_secret(site: Site) -> None:
    token = site.issuer.token("alice")
    with site.wire("OUTSIDE") as wire:
        assert log_in(wire, "PLAIN", "alice", "hidden-word").error_code == 58
    with site.wire("OUTSIDE") as wire:
        handshake(wire, "OAUTHBEARER")
        assert authenticate(wire, bearer(token)).error_code == 0
    with site.wire("OUTSIDE") as wire:
        handshake(wire, "PLAIN")
        wire.socket.sendall(request(36, 1, b"\0\0\0\x20hidden-word"))
        assert wire.closed()
    log = "".join(site.server.raw)
    for secret in ("hidden-word", PASSWORD, token, token.split(".")[2]):
        assert secret not in log


def test_a_session_is_nobody_elses(site: Site) -> None:
    """A fetch session by its id, from another user's connection."""
    with site.wire("OUTSIDE") as alice, site.wire("OUTSIDE") as bob:
        log_in(alice)
        log_in(bob, user="bob")
        answer = alice.call(1, 12, fetch_values({("q", 0): 0}, epoch=0))
        stolen = bob.call(1, 12, fetch_values({}, session_id=answer.session_id, epoch=1))
        assert stolen.error_code == 70
        assert (
            alice.call(1, 12, fetch_values({}, session_id=answer.session_id, epoch=1)).error_code
            == 0
        )


def test_a_plain_client_on_a_tls_port_and_the_other_way_round(site: Site) -> None:
    with Wire("127.0.0.1", site.port["OUTSIDE"]) as wire:
        wire.socket.sendall(versions_request())
        assert len(all_of(wire.socket)) < 100
    with socket.create_connection(("127.0.0.1", site.port["SASL"])) as connection:
        with pytest.raises((ssl.SSLError, OSError)):
            site.authority.context().wrap_socket(connection, server_hostname="localhost")
