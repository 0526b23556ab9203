"""The garbage that a worker leaves for Python: none, for it looks among young objects only."""

import gc
import os
import signal
import socket
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from kproxy.admin_socket.client import asking
from kproxy.common.errors import CannotStart
from kproxy.loop.garbage import GarbageNet
from kproxy.protocol.api_keys import ApiKey
from tests.clients.transactions.calls import transactional
from tests.fakes import as_served
from tests.harness import Served, eventually, served
from tests.kafka.shares.cluster import ShareCluster
from tests.kafka.shares.sharer import sharing
from tests.present import present
from tests.securing import Site, log_in
from tests.wire import Wire, batch, fetch_values, keyed

TELL_GARBAGE = """
import gc, json, signal, sys

def tell(*_):
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    kinds = sorted({type(one).__qualname__ for one in gc.garbage})
    gc.garbage.clear()
    gc.collect()
    print(json.dumps({"event": "garbage", "kinds": kinds}), file=sys.stderr, flush=True)

gc.disable()
gc.set_threshold = lambda *_: None
signal.signal(signal.SIGUSR2, tell)
"""


def garbage(server: Served) -> list[str]:
    """Return the kinds of all objects in cycles that were left since the last time."""
    before = len([event for event in server.events if event["event"] == "garbage"])
    os.kill(server.process.pid, signal.SIGUSR2)
    found: list[dict[str, Any]] = eventually(
        lambda: [event for event in list(server.events) if event["event"] == "garbage"][before:]
    )
    kinds: list[str] = found[0]["kinds"]
    return kinds


def use(server: Served, group: str) -> None:
    """Use the server: clients come, work, break off what they began, send nonsense, and go."""
    address = server.host, server.port
    with Wire(*address) as wire:
        wire.create(group, 4)
        wire.produce(group, batch(b"v"))
        wire.call(ApiKey.FETCH, 12, fetch_values({(group, 0): 0}, epoch=0))
        wire.call(ApiKey.DESCRIBE_CONFIGS, 4, {
            "resources": [{"resource_type": 2, "resource_name": group,
                           "configuration_keys": None}] * 500,
            "include_synonyms": True, "include_documentation": True,
        })  # fmt: skip
    for _ in range(10):
        with Wire(*address) as wire:
            wire.send(ApiKey.FETCH, 12, fetch_values({(group, 1): 0}, wait_ms=60_000))
        with socket.create_connection(address) as stranger:
            stranger.sendall(b"\0\0\0\x10abcdefghijklmnop")
            stranger.recv(10)
    for protocol in ("classic", "consumer"):
        member = Consumer({
            "bootstrap.servers": server.address, "group.id": f"{group}-{protocol}",
            "group.protocol": protocol, "auto.offset.reset": "earliest",
        })  # fmt: skip
        member.subscribe([group])
        eventually(lambda member=member: member.poll(0.2))
        member.close()
    with Wire(*address) as wire:
        wire.delete(group)


def log_in_by_all(site: Site) -> None:
    """Log in by each mechanism, fail to, leave amid it, and send a raw token."""
    for _ in range(5):
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            with site.wire("SASL") as wire:
                assert log_in(wire, mechanism).error_code == 0
                wire.metadata()
        with site.wire("SASL") as wire:
            token = site.issuer.token("alice")
            assert log_in(wire, "OAUTHBEARER", password=token).error_code == 0
        with site.wire("SASL") as wire:
            wire.call(17, 1, {"mechanism": "SCRAM-SHA-256"})
            wire.call(36, 2, {"auth_bytes": b"n,,n=alice,r=nonce"})
        with site.wire("SASL") as wire:
            wire.call(17, 0, {"mechanism": "PLAIN"})
            wire.socket.sendall(b"\0\0\0\x03abc")
    with site.wire("SASL") as wire:
        assert b"invalid" in log_in(wire, "OAUTHBEARER", password="no").auth_bytes


def pass_on(wire: Wire, queue: str) -> None:
    """Route through an entrance and a filter, one cut after the other."""
    lost = f"{queue}.lost"
    wire.create(queue, kproxy_route_to=f"{queue}-{{key}}", kproxy_route_unroutable=lost)
    wire.create(f"{queue}.some", kproxy_route_from=queue, kproxy_route_filter="key:k1")
    for turn in range(20):
        wire.produce(queue, keyed(*((b"k%d" % (n % 3), b"v") for n in range(30))))
        wire.produce(queue, batch(b"no key"))
        target, wanted = f"{queue}-k1", 10 * (turn + 1)
        eventually(lambda t=target, w=wanted: wire.list_offset(t, -1).offset == w, period=0.01)


def wait_and_be_due(wire: Wire, queue: str) -> None:
    """Delay records for some milliseconds."""
    wire.create(queue, kproxy_delay_ms="20")
    for _ in range(10):
        wire.produce(queue, batch(b"v"))
    eventually(lambda: wire.list_offset(queue, -1).offset == 10)


def share(wire: Wire, queue: str) -> None:
    """Share: a group takes, releases and rejects records, and dead letters come of it."""
    wire.create(f"dlq.{queue}", errors_deadletterqueue_group_enable="true")
    configs = {"errors_deadletterqueue_topic_name": f"dlq.{queue}"}
    with ShareCluster(wire) as cluster:
        one = sharing(cluster, queue, **configs)
        for n in range(0, 30, 3):
            cluster.write(queue, 3)
            one.fetch((queue, 0))
            one.ack({(queue, 0): [(n, n, 1), (n + 1, n + 1, 3), (n + 2, n + 2, 1)]})
        eventually(lambda: wire.list_offset(f"dlq.{queue}", -1).offset == 10)
        one.close().leave()


def transact(server: Served, queue: str) -> None:
    producer = transactional(server.address, queue)
    for turn in range(10):
        producer.begin_transaction()
        producer.produce(queue, b"v")
        producer.flush()
        (producer.abort_transaction if turn % 2 else producer.commit_transaction)()


def operate(server: Served) -> None:
    """Ask as an operator by the admin socket, and take a backup."""
    for command in ("backup", "list-users", "users", "nonsense"):
        with suppress(CannotStart), asking(server.data_dir, command) as answers:
            for _ in answers.progress():
                break


def use_all(site: Site, turn: str) -> None:
    server = site.server
    log_in_by_all(site)
    with Wire("127.0.0.1", site.port["INSIDE"]) as wire:
        pass_on(wire, f"entrance-{turn}")
        wait_and_be_due(wire, f"later-{turn}")
        share(wire, f"shared-{turn}")
        transact(server, f"decided-{turn}")
        wire.delete(f"entrance-{turn}")
    operate(server)


def test_services_leave_no_cycles(tmp_path: Path) -> None:
    """Routes, logins, delays, share groups, dead letters, transactions, admin commands, backups."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(TELL_GARBAGE)
    site = Site(tmp_path)
    options = {"env": {"PYTHONPATH": str(tmp_path / "site")}}
    with site.running(**options) as running:
        site.add_user("alice")
        use_all(running, "first")
        garbage(site.server)
        use_all(running, "again")
        left = garbage(site.server)
        assert not left, ", ".join(left)


def test_clients_leave_no_cycles(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(TELL_GARBAGE)
    flags = ("--group-initial-rebalance-delay-ms", "0")
    with served(tmp_path, *flags, env={"PYTHONPATH": str(tmp_path / "site")}) as server:
        use(server, "first")
        garbage(server)  # garbage of things that were made once
        for turn in range(3):
            use(server, f"again-{turn}")
        assert garbage(server) == []


def test_long_lived_objects_are_not_looked_at() -> None:
    """A look at a million objects took 200 ms, whatever was going on."""
    looks: list[int] = []

    def looked(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looks.append(info["generation"])

    with as_served():
        gc.callbacks.append(looked)
        kept = [[number] for number in range(1_000_000)]
        gc.callbacks.remove(looked)
    assert len(kept) == 1_000_000
    assert looks.count(0) > looks.count(1) > 10
    assert looks.count(2) == 0


class Cycle:
    def __init__(self) -> None:
        self.kept = self


def test_net_frees_cycles_that_have_grown_old() -> None:
    """In a step that looks at no more than what has grown old since the last one."""
    with as_served():
        net = GarbageNet()
        kept = [[number] for number in range(100_000)]
        while gc.get_count()[2] < 8:
            kept += [[Cycle()] for _ in range(1000)]
            if gc.get_count()[2] == 7:
                del kept[100_000:]
        del kept[100_000:]
        look = present(net.look(requests=1))
        assert not look.everything
        assert look.found > 50_000
        assert net.look(requests=2) is None


def test_net_looks_at_everything_where_nobody_asks_or_memory_has_doubled() -> None:
    with as_served():
        blocks, old = 5_000_000, 8
        net = GarbageNet(lambda: blocks, lambda: old)
        one = Cycle()
        gc.freeze()
        found = weakref.ref(one)
        del one
        looks = [net.look(requests=n) for n in range(3)]
        assert not any(look is None or look.everything for look in looks)
        assert found() is not None
        blocks = 10_100_000
        look = present(net.look(requests=4))
        assert look.everything
        assert found() is None
        blocks, old = 11_200_000, 0
        looks = [net.look(requests=5) for _ in range(61)]
        assert [n for n, look in enumerate(looks) if look is not None] == [60]
        assert looks[60] is not None
        assert looks[60].everything


def test_garbage_settings_are_restored() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    with as_served():
        assert gc.get_freeze_count() > 1000
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
