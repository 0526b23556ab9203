"""Several listeners of one kproxy: who comes in by which, as whom, for how long."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kproxy.config.server import load
from tests.forked import run_kproxy
from tests.harness import ROOT, eventually
from tests.securing import (
    MECHANISMS,
    PARTNER,
    PARTNERS_AUDIENCE,
    PASSWORD,
    Authority,
    Site,
    altered,
    authenticate,
    bearer,
    framed,
    handshake,
    log_in,
    plain,
    put_user,
)
from tests.wire import Wire, batch

REAUTH_MS = 8000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    with made.running("--connections-max-reauth-ms", str(REAUTH_MS)):
        made.add_user("alice")
        yield made


def names(site: Site) -> list[str]:
    """Return the principals that have logged in, in order."""
    return [event["principal"] for event in site.server.events if event["event"] == "login"]


def test_answers_name_the_address_of_the_listener(site: Site) -> None:
    for name in ("INSIDE", "TLS", "SASL", "OUTSIDE"):
        with site.wire(name) as wire:
            if name in ("SASL", "OUTSIDE"):
                assert log_in(wire).error_code == 0
            for broker in (
                *wire.metadata().brokers,
                *wire.call(60, 0, {"include_cluster_authorized_operations": False}).brokers,
                *wire.call(10, 4, {"key_type": 0, "coordinator_keys": ("g",)}).coordinators,
            ):
                assert (broker.host, broker.port) == ("localhost", site.port[name])


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["SASL", "OUTSIDE"])
def test_login(site: Site, name: str, mechanism: str) -> None:
    with site.wire(name) as wire:
        assert log_in(wire, mechanism).error_code == 0
        assert wire.produce("q", batch(b"v")).error_code == 0
    for user, password in (("alice", "wrong"), ("bob", PASSWORD), ("alice", PASSWORD + "x")):
        with site.wire(name) as wire:
            answer = log_in(wire, mechanism, user, password)
            assert answer.error_code == 58
            assert answer.error_message == (
                "Authentication failed: Invalid username or password"
                if mechanism == "PLAIN"
                else "Authentication failed during authentication due to invalid credentials with"
                f" SASL mechanism {mechanism}"
            )
            assert wire.closed()


PLAIN_TOLD = {  # by Kafka 4.3.1
    b"\0nobody\0x": "Authentication failed: Invalid username or password",
    b"\0\xff\0x": "Authentication failed: Invalid username or password",
    b"\0\0x": "Authentication failed: username not specified",
    b"\0alice\0": "Authentication failed: password not specified",
    b"alice": "Invalid SASL/PLAIN response: expected 3 tokens, got 1",
    b"\0alice\0x\0": "Invalid SASL/PLAIN response: expected 3 tokens, got 4",
    b"bob\0alice\0x": "Authentication failed: Client requested an authorization id that is"
    " different from username",
}


@pytest.mark.parametrize("token", PLAIN_TOLD)
def test_refusals_of_plain(site: Site, token: bytes) -> None:
    with site.wire("SASL") as wire:
        handshake(wire, "PLAIN")
        answer = authenticate(wire, token)
        assert (answer.error_code, answer.error_message) == (58, PLAIN_TOLD[token])


def test_login_by_token(site: Site) -> None:
    with site.wire("OUTSIDE") as wire:
        answer = log_in(wire, "OAUTHBEARER", password=site.issuer.token("carol", 1.9))
        assert answer.error_code == 0
        assert 0 < answer.session_lifetime.total_seconds() <= 2, "no longer than the token"
    eventually(lambda: "User:carol" in names(site))
    with site.wire("OUTSIDE") as wire:
        handshake(wire, "OAUTHBEARER")
        answer = authenticate(wire, bearer(site.issuer.token("carol", aud="other")))
        assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
        assert authenticate(wire, b"\x01").error_code == 58
        assert wire.closed()


def test_tokens_without_headers_behind_an_old_handshake(site: Site) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        with site.wire("OUTSIDE") as wire:
            assert handshake(wire, mechanism, 0).error_code == 0
            if mechanism == "PLAIN":
                wire.socket.sendall(framed(plain("alice", PASSWORD)))
                assert wire.receive_frame() == b""
            else:
                from kproxy.security import scram

                client = scram.Client(mechanism, "alice", PASSWORD)
                wire.socket.sendall(framed(client.first()))
                wire.socket.sendall(framed(client.final(wire.receive_frame())))
                client.check(wire.receive_frame())
            assert wire.produce("q", batch(b"v")).error_code == 0


def test_offered_mechanisms_are_listed(site: Site) -> None:
    with site.wire("SASL") as wire:
        answer = handshake(wire, "GSSAPI")
        assert answer.error_code == 33
        assert answer.mechanisms == (*MECHANISMS, "OAUTHBEARER")
        assert wire.closed()
    with site.wire("INSIDE") as wire:
        assert handshake(wire, "PLAIN").error_code == 34
        assert authenticate(wire, b"").error_code == 34


def test_users_of_another_issuer_are_others(site: Site) -> None:
    with site.wire("SASL") as wire:
        token = site.partner.token("alice", iss=PARTNER, aud=PARTNERS_AUDIENCE)
        assert log_in(wire, "OAUTHBEARER", password=token).error_code == 0
    eventually(lambda: names(site)[-1] == "User:partner-alice")
    with site.wire("SASL") as wire:
        token = site.issuer.token("partner-alice")
        log_in(wire, "OAUTHBEARER", password=token)
        assert authenticate(wire, b"\x01").error_code == 58, "the first issuer has no such users"


def test_a_login_lasts_so_long_and_may_be_repeated(site: Site) -> None:
    with site.wire("OUTSIDE") as wire, site.wire("OUTSIDE") as other:
        answer = log_in(wire)
        assert answer.session_lifetime.total_seconds() == REAUTH_MS / 1000
        log_in(other)
        assert handshake(wire, "SCRAM-SHA-256").error_code == 34, "it is too soon"
        time.sleep(2)
        assert log_in(wire).error_code == 0
        time.sleep(REAUTH_MS / 1000 - 1.5)
        assert wire.produce("q", batch(b"v")).error_code == 0
        with suppress(ConnectionError):
            other.metadata("q")
            raise AssertionError("the login has run out")


def test_second_login_keeps_the_principal(site: Site) -> None:
    site.add_user("bob")
    for mechanism, user, password, code in (
        ("SCRAM-SHA-256", "bob", PASSWORD, 58), ("SCRAM-SHA-256", "alice", "wrong", 58),
        ("PLAIN", "alice", PASSWORD, None),
    ):  # fmt: skip
        with site.wire("OUTSIDE") as wire:
            log_in(wire)
            time.sleep(1.1)
            if code is None:
                with pytest.raises(ConnectionError):
                    handshake(wire, mechanism)
                continue
            assert log_in(wire, mechanism, user, password).error_code == code
            assert wire.closed()


def test_logging_in_again_loses_nothing_that_is_under_way(site: Site) -> None:
    """Produces before and behind a login are all answered, once each and in order."""
    with site.wire("OUTSIDE") as wire:
        log_in(wire, "PLAIN")
        count = 0
        for _ in range(3):
            may_again = time.monotonic() + 1.05
            while time.monotonic() < may_again:
                assert wire.produce("again", batch(b"%d" % count)).base_offset == count
                count += 1
            assert log_in(wire, "PLAIN").error_code == 0


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("how", ["deleted", "changed"])
def test_a_user_who_is_gone_is_disconnected(site: Site, mechanism: str, how: str) -> None:
    site.add_user("eve")
    with site.wire("OUTSIDE") as eve, site.wire("OUTSIDE") as alice, site.wire("INSIDE") as inside:
        log_in(eve, mechanism, "eve")
        log_in(alice)
        if how == "deleted":
            doomed = [{"name": "eve", "mechanism": number} for number in (1, 2)]
            assert altered(inside, doomed) == {"eve": 0}
        else:
            put_user(inside, "eve", "another")
        assert eve.closed()
        assert alice.produce("q", batch(b"v")).error_code == 0
    with site.wire("OUTSIDE") as eve:
        assert log_in(eve, mechanism, "eve").error_code == 58


def test_users_that_cannot_be(site: Site) -> None:
    with site.wire("INSIDE") as wire:
        for iterations, code in ((4095, 93), (16_385, 93), (16_384, 0)):
            assert put_user(wire, "dora", "x", iterations) == {"dora": code}
        sound = {"name": "dora", "mechanism": 1, "iterations": 4096, "salt": b"s",
                 "salted_password": b"p"}  # fmt: skip
        for change, code in (({"name": ""}, 93), ({"mechanism": 3}, 33), ({"salt": b""}, 93)):
            (found,) = altered(wire, upsertions=[sound | change]).values()
            assert found == code
        assert altered(wire, upsertions=[sound, sound]) == {"dora": 92}
        assert altered(wire, [{"name": "nobody", "mechanism": 1}]) == {"nobody": 91}
        users = [{"name": name} for name in ("dora", "nobody", "twice", "twice")]
        answer = wire.call(50, 0, {"users": users})
        assert {one.user: int(one.error_code) for one in answer.results} == {
            "dora": 0, "nobody": 91, "twice": 92,
        }  # fmt: skip
        (dora,) = [one for one in answer.results if one.user == "dora"]
        assert [(i.mechanism, i.iterations) for i in dora.credential_infos] == [
            (1, 16_384), (2, 16_384),
        ]  # fmt: skip


def test_names_by_certificates(site: Site) -> None:
    certificate = site.authority.issue("carl", "ignored", common_name="Carl")
    with site.wire("MUTUAL", certificate) as wire:
        assert wire.produce("q", batch(b"v")).error_code == 0
    found = eventually(lambda: [e for e in site.server.events if e.get("listener") == "MUTUAL"
                                and e["event"] == "login"])  # fmt: skip
    assert found[-1]["principal"].startswith("User:carl")


def test_certificates_are_read_again(site: Site) -> None:
    """A new one is shown, a broken one is not, and who was in stays in."""
    with site.wire("TLS") as before:
        old = before.socket.getpeercert(True)  # type: ignore[attr-defined]
        text = site.authority.server.read_text()
        site.authority.server.write_text("broken")
        eventually(lambda: site.server.event("tls_not_reloaded"))
        with site.wire("TLS") as wire:
            assert wire.socket.getpeercert(True) == old  # type: ignore[attr-defined]
        site.authority.issue("server", "localhost", "127.0.0.1")
        eventually(lambda: site.server.event("tls_reloaded"))
        with site.wire("TLS") as wire:
            assert wire.socket.getpeercert(True) != old  # type: ignore[attr-defined]
        assert before.produce("q", batch(b"v")).error_code == 0
        site.authority.server.write_text(text)
        count = len([e for e in site.server.events if e["event"] == "tls_reloaded"])
        site.server.process.send_signal(signal.SIGHUP)
        eventually(lambda: len([e for e in site.server.events if e["event"] == "tls_reloaded"])
                   >= count + 3)  # fmt: skip


def test_an_authority_that_is_taken_away_is_trusted_no_more(tmp_path: Path) -> None:
    site = Site(tmp_path)
    other = Authority(tmp_path / "other")
    ca = site.authority.ca.read_text()
    site.authority.ca.write_text(ca + other.ca.read_text())
    with site.running():
        context = site.authority.context(other.issue("eve", "eve"))
        plain_wire = Wire("127.0.0.1", site.port["MUTUAL"])
        plain_wire.socket = context.wrap_socket(plain_wire.socket, server_hostname="localhost")
        with plain_wire as wire:
            assert wire.produce("q", batch(b"v")).error_code == 0
        site.authority.ca.write_text(ca)
        eventually(lambda: site.server.event("tls_reloaded"))
        again = Wire("127.0.0.1", site.port["MUTUAL"])

        def comes() -> None:
            with again:
                again.socket = context.wrap_socket(again.socket, server_hostname="localhost")
                again.produce("q", batch(b"v"))

        with pytest.raises(OSError):  # TLS 1.3 tells at the first read
            comes()


def command(site: Site, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_kproxy(*arguments, stdin=stdin)


def test_kproxys_own_commands(site: Site, tmp_path: Path) -> None:
    data = ("--data-dir", str(site.directory / "data"))
    done = command(site, "users", "add", "operator", *data, stdin=PASSWORD + "\n")
    assert (done.returncode, done.stdout) == (0, "operator may log in\n"), done.stderr
    for mechanism, form in zip(MECHANISMS, ("librdkafka", "java", "java"), strict=True):
        file = tmp_path / "client.properties"
        escaped = re.sub(r'(["\\])', r"\\\1", PASSWORD)
        login = {
            "librdkafka": f"sasl.username=operator\nsasl.password={PASSWORD}\n"
            f"ssl.ca.location={site.authority.ca}\n",
            "java": "sasl.jaas.config=org.apache.kafka.common.security.X required"
            f' username="operator" password="{escaped}";\nssl.truststore.type=PEM\n'
            f"ssl.truststore.location={site.authority.ca}\nclient.id=x\n",
        }[form]
        file.write_text(f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n{login}")
        there = ("--bootstrap-server", site.address("OUTSIDE"), "--command-config", str(file))
        listed = command(site, "queues", "--json", *there)
        assert listed.returncode == 0, listed.stderr
        users = command(site, "users", "list", "--json", *there)
        assert "operator" in [json.loads(line)["user"] for line in users.stdout.splitlines()]
    assert command(site, "users", "add", "dave", *there, stdin="x").returncode == 0
    assert command(site, "users", "delete", "dave", "--mechanism", "SCRAM-SHA-256", *data).stdout
    assert command(site, "users", "delete", "dave", *there).stdout == (
        "dave is deleted: SCRAM-SHA-512\n"
    )
    assert command(site, "users", "delete", "dave", *there).returncode == 1
    file.write_text(file.read_text().replace("operator", "nobody"))
    refused = command(site, "queues", *there)
    assert refused.returncode == 1
    assert refused.stderr.startswith("kproxy: not logged in as nobody")
    assert len(refused.stderr.splitlines()) == 1
    assert command(site, "queues", *there[:2]).returncode == 1, "it needs TLS"
    log = "".join(site.server.raw)
    assert PASSWORD not in log
    changed = [e for e in site.server.events if e["event"] == "user_changed"]
    assert {e["by"] for e in changed} >= {"User:operator", "User:ANONYMOUS"}


def test_start_with_absent_files_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for path in (site.authority.server, site.authority.ca, site.issuer.path):
        text = path.read_text()
        for change in ("", None):
            path.unlink() if change is None else path.write_text(change)
            done = command(site, "serve", "--config", str(site.config), "--data-dir",
                           str(tmp_path / "data"))  # fmt: skip
            assert done.returncode == 1
            assert str(path) in done.stderr.splitlines()[-1]
            assert len(done.stderr.splitlines()[-1]) < 400
            path.write_text(text)


def test_settings_of_workers_beside_each_other(tmp_path: Path) -> None:
    site = Site(tmp_path)
    config = load({}, site.config, {})
    for one in config.listening:
        assert one.beside(10).address == ("127.0.0.1", one.address[1] + 10)
        assert one.beside(10).advertised == ("localhost", one.address[1] + 10)


def test_the_secured_compose_file_has_sound_settings() -> None:
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((ROOT / "docker-compose.secured.yml").read_text())
    service = compose["services"]["kproxy"]
    assert service["environment"]["KPROXY_HTTP_LISTEN"].startswith("127.0.0.1:")
    assert service["volumes"] == ["./deploy/secured:/etc/kproxy:ro"]
    flags = service["command"].split()
    assert flags[:3] == ["serve", "--config", "/etc/kproxy/kproxy.toml"]
    config = load({"workers": 2, "bootstrap_servers": "kafka:9092"},
                  ROOT / "deploy" / "secured" / "kproxy.toml", {})  # fmt: skip
    (listener,) = config.listening
    assert listener.tls
    assert listener.sasl
    assert listener.beside(1).advertised == ("localhost", 9093)
    assert str(listener.certificate).startswith("/etc/kproxy/")
