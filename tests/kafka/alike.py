"""Running the same requests against kproxy and a real Kafka, and comparing the answers.

What may differ is named: ids, timestamps of now, text of messages, leader epochs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.harness import Served, eventually
from tests.real_kafka import Kafka
from tests.wire import Wire

MAY_DIFFER = {
    "throttle_time", "topic_id", "cluster_id", "error_message", "message", "node_id", "host",
    "port", "broker_id", "leader_epoch", "leader_id", "replica_nodes", "isr_nodes",
    "controller_id", "session_id", "producer_id", "configs", "node_endpoints", "current_leader",
}  # fmt: skip


def plain(value: Any) -> Any:
    """An answer as plain data, without what may differ."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.name not in MAY_DIFFER
        }
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def _nothing(wire: Wire) -> None:
    pass


Script = Callable[[Wire, str], list[Any]]


def alike(
    kafka: Kafka,
    server: Served,
    script: Script,
    queue: str,
    prepare: Callable[[Wire], None] = _nothing,
) -> None:
    """Run a script of requests against both and compare what it returns, step by step."""
    answers = []
    queue = f"{queue}-{server.port}"  # the real Kafka is asked once for each kind of server
    for target in (kafka, server):
        with Wire(target.host, target.port) as wire:
            prepare(wire)
            answers.append([plain(step) for step in script(wire, queue)])
    for step, (theirs, ours) in enumerate(zip(*answers, strict=True)):
        assert ours == theirs, f"step {step}: a real Kafka answers {theirs}, kproxy {ours}"


def made(wire: Wire, queue: str, partitions: int = 1, **configs: str) -> None:
    """Create a queue and wait until it can be written: a real Kafka takes a moment."""
    assert wire.create(queue, partitions, **configs).error_code == 0
    for index in range(partitions):
        eventually(lambda i=index: wire.list_offset(queue, -1, i).error_code == 0)
