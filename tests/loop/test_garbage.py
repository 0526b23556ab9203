"""What a worker leaves for Python to find: nothing, for it looks among young objects only."""

import gc
import os
import signal
import socket
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from kproxy.protocol.api_keys import ApiKey
from tests.fakes import as_served
from tests.harness import Served, eventually, served
from tests.wire import Wire, batch, fetch_values

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
    """The kinds of all objects in cycles that were left since the last time."""
    before = len([event for event in server.events if event["event"] == "garbage"])
    os.kill(server.process.pid, signal.SIGUSR2)
    found: list[dict[str, Any]] = eventually(
        lambda: [event for event in list(server.events) if event["event"] == "garbage"][before:]
    )
    kinds: list[str] = found[0]["kinds"]
    return kinds


def use(server: Served, group: str) -> None:
    """Clients come, work, break off what they began, send nonsense, and go."""
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


def test_what_clients_do_leaves_no_cycles(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(TELL_GARBAGE)
    flags = ("--group-initial-rebalance-delay-ms", "0")
    with served(tmp_path, *flags, env={"PYTHONPATH": str(tmp_path / "site")}) as server:
        use(server, "first")
        garbage(server)  # of what was made once
        for turn in range(3):
            use(server, f"again-{turn}")
        assert garbage(server) == []


def test_what_lives_long_is_not_looked_at() -> None:
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


def test_what_is_set_is_undone() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    with as_served():
        assert gc.get_freeze_count() > 1000
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
