"""The same requests to kproxy and to a real Kafka 4.3.1: the answers must be alike.

What may differ is named: ids, timestamps of now, text of messages, leader epochs.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.harness import Served, eventually
from tests.kafka.conftest import Kafka
from tests.wire import Wire, batch, fetch_values, produce_values

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


Script = Callable[[Wire, str], list[Any]]


def alike(kafka: Kafka, server: Served, script: Script, queue: str) -> None:
    """Run a script of requests against both and compare what it returns, step by step."""
    answers = []
    for target in (kafka, server):
        with Wire(target.host, target.port) as wire:
            answers.append([plain(step) for step in script(wire, queue)])
    for step, (theirs, ours) in enumerate(zip(*answers, strict=True)):
        assert ours == theirs, f"step {step}: a real Kafka answers {theirs}"


def made(wire: Wire, queue: str, partitions: int = 1, **configs: str) -> None:
    """Create a queue and wait until it can be written: a real Kafka takes a moment."""
    assert wire.create(queue, partitions, **configs).error_code == 0
    for index in range(partitions):
        eventually(lambda i=index: wire.list_offset(queue, -1, i).error_code == 0)


# Not compared: null records, which a real Kafka never answers, and an unknown codec, which it
# answers with UNKNOWN_SERVER_ERROR.
BAD = {
    "empty": b"",
    "crc": batch(b"a", crc=7),
    "count": batch(b"a", count=5),
    "over": batch(b"a", count=5, last_delta=4),
    "none": batch(count=0, last_delta=-1),
    "delta": batch(b"a", last_delta=3),
    "magic": batch(b"a", magic=1),
    "two": batch(b"a") + batch(b"b"),
    "cut": batch(b"a")[:-1],
    "short": batch(b"a")[:30],
    "tiny": b"x" * 5,
    "control": batch(b"a", attributes=0x20),
    "transactional": batch(b"a", attributes=0x10),
    "stamped": batch(b"a", attributes=0x08),
    "large": batch(b"x" * 1_048_600),
    "length": batch(b"a")[:8] + (5).to_bytes(4, "big") + batch(b"a")[12:],
    "no epoch": batch(b"a", producer_id=5, epoch=-1, sequence=0),
    "no sequence": batch(b"a", producer_id=5, epoch=0, sequence=-1),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches(kafka: Kafka, server: Served, name: str) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        code = wire.produce(queue, BAD[name]).error_code
        stored = wire.fetch(queue, 0).records or bytes(23)
        return [code, wire.list_offset(queue, -1), stored[22]]

    alike(kafka, server, script, f"bad-{name.replace(' ', '-')}")


def test_zstd_by_version(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        return [wire.produce(queue, batch(b"a", attributes=4), version=6).error_code]

    alike(kafka, server, script, "zstd-by-version")


@pytest.mark.parametrize("version", [3, 5, 8, 9, 11, 12])
def test_produce_and_fetch_in_every_shape(kafka: Kafka, server: Served, version: int) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        steps = [wire.produce(queue, batch(b"a", b"b"), version=version) for _ in range(3)]
        steps += [wire.produce(queue, batch(b"a"), partition=7, version=version)]
        for fetch_version in (4, 5, 7, 11, 12):
            steps += [wire.fetch(queue, offset, version=fetch_version) for offset in (0, 3, 6)]
        return steps

    alike(kafka, server, script, f"shapes-{version}")


def test_fetch_faults(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue, 2)
        wire.produce(queue, batch(b"a"))
        return [
            wire.fetch(queue, 5),
            wire.fetch(queue, -1),
            wire.fetch(queue, 0, partition=9),
            wire.fetch("absent-" + queue, 0),
            wire.fetch(queue, 0, leader_epoch=5).error_code,
            wire.fetch(UUID(int=77), 0, version=13),
            wire.fetch(queue, 0, isolation=1),
            wire.fetch(queue, 0, isolation=0),
        ]

    alike(kafka, server, script, "fetch-faults")


def test_sequences(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        pid = wire.producer_id()

        def send(sequence: int, count: int = 1, epoch: int = 0) -> Any:
            data = batch(*[b"v"] * count, producer_id=pid, epoch=epoch, sequence=sequence)
            return wire.produce(queue, data)

        steps = [send(0), send(0), send(1), send(5), send(2, 3), send(2, 3), send(2, 2)]
        steps += [send(n) for n in range(5, 11)]
        steps += [send(0), send(5), send(6), send(2, 3), send(10, epoch=1), send(0, epoch=1)]
        steps += [send(1, epoch=0), send(0, epoch=1), send(1, epoch=1)]
        return steps

    alike(kafka, server, script, "sequences")


def test_a_producer_starts_anywhere_and_wraps(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        pid = wire.producer_id()
        steps = []
        for sequence, count in ((2**31 - 2, 2), (0, 1), (2**31 - 2, 2), (1, 2)):
            data = batch(*[b"v"] * count, producer_id=pid, epoch=0, sequence=sequence)
            steps.append(wire.produce(queue, data))
        return steps

    alike(kafka, server, script, "wraps")


TIMES = (1000, 5000, 3000, 9000, 2000, 9000, 100)


def test_list_offsets(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        steps = [wire.list_offset(queue, t) for t in (-1, -2, -3, 0, 5)]
        wire.produce(queue, batch(*[b"v"] * 3, times=TIMES[:3]))
        wire.produce(queue, batch(*[b"v"] * 3, times=TIMES[3:6]))
        wire.produce(queue, batch(b"v", times=TIMES[6:]))
        wanted = (-1, -2, -3, -4, -5, 0, 100, 1000, 1001, 3000, 5000, 5001, 9000, 9001)
        steps += [wire.list_offset(queue, t) for t in wanted]
        for version in (1, 4, 6):
            steps += [wire.list_offset(queue, t, version=version) for t in (-1, -2, 3000)]
        steps += [wire.list_offset("absent-" + queue, -1), wire.list_offset(queue, -1, 9)]
        trim(wire, queue, 4)
        # Not compared: -3, for which a real Kafka gives an offset that was trimmed.
        steps += [wire.list_offset(queue, t) for t in (-1, -2, 0, 3000, 9000)]
        return steps

    alike(kafka, server, script, "list-offsets")


def trim(wire: Wire, queue: str, offset: int, partition: int = 0) -> Any:
    part = {"partition_index": partition, "offset": offset}
    topics = [{"name": queue, "partitions": [part]}]
    return wire.call(21, 2, {"topics": topics, "timeout": 5000}).topics[0].partitions[0]


def test_delete_records(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        for _ in range(5):
            wire.produce(queue, batch(b"a", b"b"))
        steps = [trim(wire, queue, offset) for offset in (3, 2, 11, -2, 7)]
        steps += [wire.fetch(queue, 6), wire.fetch(queue, 8).log_start_offset]
        steps += [trim(wire, queue, -1), wire.list_offset(queue, -2), wire.list_offset(queue, -1)]
        steps += [trim(wire, queue, 0, 4), trim(wire, "absent-" + queue, 0)]
        return [*steps, wire.produce(queue, batch(b"c"))]

    alike(kafka, server, script, "delete-records")


def create_values(name: str, **changes: Any) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (),
             "configs": ()} | changes  # fmt: skip
    return {"topics": [topic], "timeout": 10_000}


def test_create_topics(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        assignment = [{"partition_index": 0, "broker_ids": (1,)}]
        gap = [{"partition_index": 1, "broker_ids": (1,)}]
        stranger = [{"partition_index": 0, "broker_ids": (99,)}]
        by_hand = {"num_partitions": -1, "replication_factor": -1}
        cases: list[tuple[str, dict[str, Any]]] = [
            ("a", {}),
            ("a", {}),
            ("b", {"num_partitions": -1, "replication_factor": -1}),
            ("c", {"num_partitions": 0}),
            ("c", {"num_partitions": -5}),
            ("c", {"replication_factor": 3}),
            ("c", {"replication_factor": 0}),
            ("c", {"configs": [{"name": "no.such", "value": "1"}]}),
            ("c", {"configs": [{"name": "retention.ms", "value": "soon"}]}),
            ("c", {"configs": [{"name": "cleanup.policy", "value": "shred"}]}),
            ("c", {"configs": [{"name": "message.timestamp.type", "value": "Never"}]}),
            ("c!", {}),
            ("x" * 250, {}),
            ("d", by_hand | {"assignments": assignment}),
            ("e", {"assignments": assignment}),
            ("e", by_hand | {"assignments": gap}),
            ("e", by_hand | {"assignments": stranger}),
            ("f", {"num_partitions": 3, "configs": [{"name": "retention.ms", "value": "1000"}]}),
        ]
        steps = []
        for name, changes in cases:
            full = name if len(name) > 200 else f"{queue}-{name}"
            steps.append(wire.call(19, 7, create_values(full, **changes)).topics[0].error_code)
        dry = create_values(f"{queue}-dry") | {"validate_only": True}
        steps.append(wire.call(19, 7, dry).topics[0].error_code)
        steps.append(wire.metadata(f"{queue}-dry", create=False).topics[0].error_code)
        twice = create_values(f"{queue}-twice")
        twice["topics"] *= 2
        steps.append([t.error_code for t in wire.call(19, 7, twice).topics])
        return steps

    alike(kafka, server, script, "create-topics")


def test_delete_topics(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        made(wire, queue + "-2")
        topic_id = eventually(lambda: wire.metadata(queue, create=False).topics[0].topic_id)

        def by_id(value: UUID) -> Any:
            topic = {"name": None, "topic_id": value}
            return wire.call(20, 6, {"topics": [topic], "timeout": 5000}).responses[0].error_code

        def old(name: str) -> Any:
            values = {"topic_names": [name], "timeout": 5000}
            return wire.call(20, 3, values).responses[0].error_code

        return [
            by_id(UUID(int=99)), by_id(topic_id), by_id(topic_id), old(queue), old(queue + "-2"),
            wire.delete("absent").error_code,
        ]  # fmt: skip

    alike(kafka, server, script, "delete-topics")


def test_create_partitions(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue, 2)

        def grow(name: str, count: int, **more: Any) -> Any:
            topic = {"name": name, "count": count, "assignments": None} | more
            values = {"topics": [topic], "timeout": 5000, "validate_only": False}
            return wire.call(37, 3, values).results[0].error_code

        steps = [grow(queue, 2), grow(queue, 1), grow(queue, 0), grow("absent-" + queue, 4)]
        steps += [grow(queue, 4, assignments=[{"broker_ids": (1,)}])]
        steps += [grow(queue, 4, assignments=[{"broker_ids": (99,)}] * 2)]
        steps += [grow(queue, 4)]
        eventually(lambda: wire.list_offset(queue, -1, 3).error_code == 0)
        return [*steps, wire.produce(queue, batch(b"v"), partition=3)]

    alike(kafka, server, script, "create-partitions")


@pytest.mark.parametrize("version", [0, 1, 4, 7, 9, 10, 12, 13])
def test_metadata(kafka: Kafka, server: Served, version: int) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue, 3)
        some = wire.metadata(queue, "bad name", version=version)
        # The comparison leaves out partition order, which Kafka does not promise.
        topics = [
            (t.error_code, t.name, getattr(t, "is_internal", None),
             sorted((p.partition_index, p.error_code) for p in t.partitions))
            for t in sorted(some.topics, key=lambda t: t.name)
        ]  # fmt: skip
        absent = wire.metadata("absent-" + queue, create=False, version=max(version, 4))
        return [topics, len(some.brokers), absent.topics]

    alike(kafka, server, script, f"metadata-{version}")


def test_metadata_by_id(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        topic_id = wire.metadata(queue).topics[0].topic_id
        steps = []
        for value in (topic_id, UUID(int=99)):
            values = {
                "topics": [{"name": None, "topic_id": value}],
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": True,
            }
            topic = wire.call(3, 12, values).topics[0]
            steps.append((topic.error_code, topic.name, topic.topic_authorized_operations))
        return steps

    alike(kafka, server, script, "metadata-by-id")


def commit_values(group: str, queue: str, offset: int, **changes: Any) -> dict[str, Any]:
    part = {"partition_index": changes.pop("partition", 0), "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": changes.pop("metadata", "")}  # fmt: skip
    base = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": queue, "partitions": [part]}]}  # fmt: skip
    return base | changes


def test_commits(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue, 2)
        group = queue
        find = {"key_type": 0, "coordinator_keys": (group,)}
        eventually(lambda: wire.call(10, 4, find).coordinators[0].error_code == 0, 60)

        def commit(offset: int, name: str = queue, **changes: Any) -> Any:
            values = commit_values(group, name, offset, **changes)
            return wire.call(8, 9, values).topics[0].partitions[0].error_code

        def committed(topics: Any, name: str = group) -> Any:
            one = {"group_id": name, "topics": topics}
            return wire.call(9, 8, {"groups": [one], "require_stable": False}).groups[0]

        eventually(lambda: commit(1) == 0, 60)
        steps = [
            commit(5, metadata="note"), commit(3), commit(7, partition=1, metadata="x" * 4096),
            commit(7, metadata="x" * 4097), commit(7, partition=9), commit(7, "absent-" + queue),
            commit(7, member_id="someone"), commit(7, generation_id_or_member_epoch=4),
        ]  # fmt: skip
        steps += [
            committed([{"name": queue, "partition_indexes": (0, 1, 9)}]),
            sorted(p.committed_offset for t in committed(None).topics for p in t.partitions),
            committed([{"name": "absent-" + queue, "partition_indexes": (0,)}]),
            committed([{"name": queue, "partition_indexes": (0,)}], "no-such-group"),
            committed(None, "no-such-group"),
        ]

        def forget(index: int, name: str = group) -> Any:
            topics = [{"name": queue, "partitions": [{"partition_index": index}]}]
            return wire.call(47, 0, {"group_id": name, "topics": topics})

        steps += [forget(0), forget(9), forget(0, "no-such-group")]
        steps += [committed([{"name": queue, "partition_indexes": (0, 1)}])]
        return steps

    alike(kafka, server, script, "commits")


def test_leader_epochs(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        wire.produce(queue, batch(b"a", b"b"))

        def ask(epoch: int, current: int = -1, partition: int = 0) -> Any:
            part = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
            topics = [{"topic": queue, "partitions": [part]}]
            answer = wire.call(23, 4, {"replica_id": -1, "topics": topics})
            found = answer.topics[0].partitions[0]
            return found.error_code, found.leader_epoch, found.end_offset

        return [ask(0), ask(7), ask(0, 9), ask(0, partition=5)]

    alike(kafka, server, script, "leader-epochs")


def test_fetch_sessions(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue, 3)
        names = [(queue, i) for i in range(3)]
        wire.produce(queue, batch(b"a"), partition=1)

        def fetch(offsets: Any, session: int, epoch: int, **more: Any) -> Any:
            return wire.call(1, 12, fetch_values(offsets, session_id=session, epoch=epoch, **more))

        def parts(answer: Any) -> Any:
            return (
                answer.error_code, answer.session_id != 0,
                sorted((p.partition_index, p.error_code, p.high_watermark, len(p.records or b""))
                       for t in answer.responses for p in t.partitions),
            )  # fmt: skip

        first = fetch(dict.fromkeys(names, 0), 0, 0)
        session = first.session_id
        steps = [parts(first)]
        steps.append(parts(fetch({}, session, 1)))
        steps.append(parts(fetch({names[1]: 1}, session, 2)))
        wire.produce(queue, batch(b"b"), partition=2)
        steps.append(parts(fetch({}, session, 3, wait_ms=1000)))
        steps.append(parts(fetch({names[2]: 1}, session, 4, forget={queue: (0,)})))
        steps.append(parts(fetch({}, session, 9)))
        steps.append(parts(fetch({}, session + 1, 5)))
        steps.append(parts(fetch({(queue, 7): 0}, session, 5)))
        steps.append(parts(fetch({}, session, -1)))
        steps.append(parts(fetch({}, session, 6)))
        return steps

    alike(kafka, server, script, "fetch-sessions")


def test_fetch_limits(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue, 2)
        for i in range(6):
            wire.produce(queue, batch(b"x" * 1000), partition=i % 2)
        size = len(batch(b"x" * 1000))
        steps = []
        for limit in (1, size - 1, size, 2 * size, 2 * size + 1, 10 * size):
            one = wire.fetch(queue, 0, partition_max_bytes=limit).records or b""
            steps.append(len(one) // size)  # a real Kafka adds part of the next batch
            both = wire.call(1, 12, fetch_values({(queue, 0): 0, (queue, 1): 0}, max_bytes=limit))
            sizes = [len(p.records or b"") for t in both.responses for p in t.partitions]
            steps.append(sum(sizes) // size)
        return steps

    alike(kafka, server, script, "fetch-limits")


def test_acks_and_timeouts(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        return [wire.produce(queue, batch(b"v"), acks=acks).error_code for acks in (1, -1, 2, -2)]

    alike(kafka, server, script, "acks")


def test_produce_by_id(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        topic_id = wire.metadata(queue).topics[0].topic_id
        steps = [
            wire.produce(topic_id, batch(b"v"), version=13),
            wire.produce(UUID(int=99), batch(b"v"), version=13),
            wire.produce(topic_id, batch(b"v"), partition=4, version=13),
            wire.fetch(topic_id, 0, version=16),
        ]
        wire.delete(queue)
        eventually(lambda: wire.produce(topic_id, batch(b"v"), version=13).error_code != 0)
        return [*steps, wire.fetch(topic_id, 0, version=16).error_code]

    alike(kafka, server, script, "produce-by-id")


def test_log_append_time(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue, message_timestamp_type="LogAppendTime")
        data = batch(b"a", times=(1000,))
        done = wire.produce(queue, data)
        again = wire.list_offset(queue, -3)
        stored = wire.fetch(queue, 0).records
        assert done.log_append_time is not None
        return [done.base_offset, again.offset, again.timestamp > 1_000_000, stored[22]]

    alike(kafka, server, script, "log-append-time")


def test_timestamps_of_the_future(kafka: Kafka, server: Served) -> None:
    now = int(time.time() * 1000)

    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        made(wire, queue + "-set", message_timestamp_after_max_ms="5000")
        made(wire, queue + "-stamped", message_timestamp_type="LogAppendTime")
        return [
            (name, ahead, wire.produce(queue + name, batch(b"v", times=(now + ahead,))).error_code)
            for name in ("", "-set", "-stamped")
            for ahead in (-(10**12), 0, 100_000, 3_000_000, 4_000_000, 10**12)
        ]

    alike(kafka, server, script, "future")


def test_describe_configs(kafka: Kafka, server: Served) -> None:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue, retention_ms="5000")
        resources = [
            {"resource_type": 2, "resource_name": name, "configuration_keys": keys}
            for name, keys in (
                (queue, ("retention.ms", "cleanup.policy", "no.such")), ("absent", None),
                ("bad name", None),
            )
        ]  # fmt: skip
        answer = wire.call(32, 4, {"resources": resources, "include_synonyms": False})
        found = [
            (r.error_code, [(c.name, c.value, c.config_source, c.config_type) for c in
             sorted(r.configs, key=lambda c: c.name)])
            for r in answer.results
        ]  # fmt: skip
        return [found]

    alike(kafka, server, script, "describe-configs")


def test_produce_values_helper_is_what_kafka_takes(kafka: Kafka) -> None:
    with Wire(kafka.host, kafka.port) as wire:
        made(wire, "helper")
        answer = wire.call(0, 9, produce_values("helper", batch(b"v")))
        assert answer.responses[0].partition_responses[0].error_code == 0
