"""Records and queues: Produce, Fetch, ListOffsets, Metadata and what makes and drops queues."""

from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import made
from tests.kafka.at_versions.asked import Asked, Values
from tests.kafka.canonical import unheard
from tests.wire import TODAY_MS, Wire, batch, fetch_values, produce_values

ZERO = UUID(int=0)
NOBODY = UUID(int=77)
_LATEST_IDS = 13  # from here on Produce and Fetch name topics by id


def produce(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    topic_id = with_id(wire, queue)
    made(wire, late := f"{queue}-late", message_timestamp_after_max_ms="1000")
    late_id = with_id(wire, late)
    pid = wire.producer_id()
    wire.produce(queue, batch(b"v", producer_id=pid, epoch=3, sequence=0))
    wire.produce(queue, batch(b"w", producer_id=pid, epoch=3, sequence=1))

    def of(records: bytes | None, **more: Any) -> Any:
        name, found = more.pop("name", queue), more.pop("id", topic_id)
        changes = {k: more.pop(k) for k in ("acks", "transactional_id") if k in more}

        def values(version: int) -> Values:
            label = found if version >= _LATEST_IDS else name
            return produce_values(label, records, **more) | changes

        return partial(asked.each, key=ApiKey.PRODUCE, values=values)

    of(batch(b"w", producer_id=pid, epoch=3, sequence=1))("a repeated batch")
    of(batch(b"x", producer_id=pid, epoch=2, sequence=2))("a fenced producer")
    of(batch(b"x", producer_id=pid, epoch=3, sequence=7))("a sequence too high")
    of(batch(b"x", producer_id=pid, epoch=4, sequence=7))("a new epoch's sequence too high")
    of(batch(b"x", producer_id=pid + 10**6, epoch=0, sequence=5))("an unknown producer")
    of(batch(b"x"), name=f"{queue}-none", id=NOBODY, partition=3)("an unknown queue")
    of(batch(b"x"), partition=7)("an unknown partition")
    of(batch(b"x", crc=1))("a damaged batch")
    of(batch(b"x", magic=1))("an old batch")
    of(batch(b"x", count=3))("a wrong count")
    of(batch(b"x"), acks=2)("acks of two")
    of(batch(b"x", times=(TODAY_MS + 10**8,)), name=late, id=late_id)("a time too late")
    of(batch(b"x", attributes=0x10, producer_id=pid, epoch=3, sequence=2),
       transactional_id=f"{queue}-nobody")("a transaction that nobody began")  # fmt: skip
    of(batch(b"x", attributes=0x10, producer_id=pid, epoch=3, sequence=2))("no transactional id")


def fetch(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    topic_id = with_id(wire, queue)
    wire.produce(queue, batch(b"a", b"b"))

    def ask(what: str, offset: int = 0, index: int = 0, **more: Any) -> None:
        name, found = more.pop("name", queue), more.pop("id", topic_id)
        extra = {"last_fetched_epoch": more.pop("last_fetched_epoch", -1)}

        def values(version: int) -> Values:
            label = found if version >= _LATEST_IDS else name
            given = fetch_values({(label, index): offset}, **more)
            for topic in given["topics"]:
                for part in topic["partitions"]:
                    part.update(extra)
            return given

        asked.each(what, ApiKey.FETCH, values)

    ask("known")
    ask("known, to read_committed", isolation=1)
    ask("at the end", 2)
    ask("beyond the end", 9)
    ask("unknown queue", name=f"{queue}-none", id=NOBODY)
    ask("unknown partition", index=5)
    ask("a leader epoch of the future", leader_epoch=10**6)
    ask("a fetched epoch of the future", last_fetched_epoch=10**6)
    ask("an unknown session", session_id=12345, epoch=3)
    ask("a session's first", epoch=0)
    ask("a session that ends", session_id=12345, epoch=-1)


def list_offsets(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    made(wire, queue)
    wire.produce(queue, batch(b"a", b"b", b"c", times=(1000, 3000, 2000)))
    cases: list[tuple[str, Values]] = [
        (f"timestamp {time}", {"timestamp": time})
        for time in (-1, -2, -3, -4, -5, -6, -7, 0, 2000, 3001)
    ]
    cases += [
        ("unknown queue", {"name": f"{queue}-none"}),
        ("unknown partition", {"partition_index": 5}),
        ("a leader epoch of the future", {"current_leader_epoch": 10**6}),
        ("a replica", {"replica_id": 5}),
        ("an isolation level that is none", {"isolation_level": 9}),
    ]
    for what, changes in cases:
        part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1} | changes
        values = {
            "replica_id": -1, "isolation_level": 0, "timeout": 1000,
            "topics": [{"name": changes.get("name", queue), "partitions": [part]}],
        } | changes  # fmt: skip
        asked.each(what, ApiKey.LIST_OFFSETS, values)


def metadata(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    topic_id = with_id(wire, queue)

    def ask(what: str, topics: Any, **more: Any) -> None:
        def values(version: int) -> Values:
            given = topics(version) if callable(topics) else topics
            return {
                "topics": given, "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            } | more  # fmt: skip

        asked.each(what, ApiKey.METADATA, values, own)

    def own(answer: Any) -> Any:
        """Keep this script's queues of all."""
        kept = tuple(t for t in answer.topics if t.name is None or t.name.startswith(queue))
        return replace(answer, topics=kept)

    def named(name: str | None, found: UUID = ZERO) -> list[Values]:
        return [{"name": name, "topic_id": found}]

    ask("known", named(queue))
    ask("none or all", ())
    ask("all", lambda version: None if version else ())
    ask("unknown", lambda v: named(f"{queue}-none") if v >= 4 else named(queue))
    ask("a bad name", lambda v: named(f"{queue} bad"))
    ask("by id", lambda v: named(None, topic_id) if v >= 12 else named(queue))
    ask("by unknown id", lambda v: named(None, NOBODY) if v >= 12 else named(queue))
    ask("by id and name", lambda v: named(queue, topic_id) if v >= 12 else named(queue))
    ask("by id where none can be", lambda v: named(None, topic_id) if v >= 10 else named(queue))
    ask(
        "with operations", named(queue), include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )  # fmt: skip


def for_leader_epoch(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    made(wire, queue)
    wire.produce(queue, batch(b"a", b"b"))
    cases: tuple[tuple[str, Values], ...] = (
        ("an epoch to come", {"leader_epoch": 10**6}), ("no epoch", {"leader_epoch": -1}),
        ("unknown queue", {"topic": f"{queue}-none"}), ("unknown partition", {"partition": 5}),
        ("a leader epoch of the future", {"current_leader_epoch": 10**6}),
        ("a replica", {"replica_id": 5}),
    )  # fmt: skip
    for what, changes in cases:
        part = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1} | changes
        topic = {"topic": changes.get("topic", queue), "partitions": [part]}
        values = {"replica_id": -2, "topics": [topic]} | changes
        asked.each(what, ApiKey.OFFSET_FOR_LEADER_EPOCH, values)


def create_topics(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    made(wire, queue)

    def ask(what: str, name: str | None = None, dry: bool = False, **changes: Any) -> None:
        def values(version: int) -> Values:
            topic = {"name": name or f"{queue}-v{version}", "num_partitions": 2,
                     "replication_factor": 1, "assignments": (), "configs": ()}  # fmt: skip
            return {"topics": [topic | changes], "timeout": 10_000, "validate_only": dry}

        asked.each(what, ApiKey.CREATE_TOPICS, values, some_settings)

    settings = ({"name": "max.message.bytes", "value": "1234"},)
    ask("dry", dry=True)
    ask("with Kafka's defaults", dry=True, num_partitions=-1, replication_factor=-1)
    ask("new", configs=settings)
    ask("there already", queue)
    ask("a bad name", f"{queue} bad")
    ask("no partitions", f"{queue}-none", num_partitions=0)
    ask("too many replicas", f"{queue}-none", replication_factor=9)
    ask("an unknown setting", f"{queue}-none", configs=({"name": "no.such", "value": "1"},))
    hand = ({"partition_index": 0, "broker_ids": (99,)},)
    ask("a stranger's", f"{queue}-none", num_partitions=-1, replication_factor=-1,
        assignments=hand)  # fmt: skip


def some_settings(answer: Any) -> Any:
    """Return it with few of the settings that it tells: kproxy has more, and another retention."""

    def few(topic: Any) -> Any:
        if not getattr(topic, "configs", None):
            return topic
        both = ("cleanup.policy", "max.message.bytes", "compression.type")
        return replace(topic, configs=tuple(one for one in topic.configs if one.name in both))

    return replace(answer, topics=tuple(few(topic) for topic in answer.topics))


def delete_topics(asked: Asked) -> None:
    queue = asked.name

    def ask(what: str, *names: Any) -> None:
        def values(version: int) -> Values:
            given = [one(version) if callable(one) else one for one in names]
            topics = [
                {"name": None, "topic_id": one} if isinstance(one, UUID) and version >= 6
                else {"name": str(one), "topic_id": ZERO}
                for one in given
            ]  # fmt: skip
            return {"topics": topics, "topic_names": [str(one) for one in given], "timeout": 9000}

        asked.each(what, ApiKey.DELETE_TOPICS, values)

    def one_more(version: int) -> str:
        made(asked.wire, f"{queue}-v{version}")
        return f"{queue}-v{version}"

    ask("known", one_more)
    ask("unknown", f"{queue}-none")
    ask("unknown, named twice", f"{queue}-none", f"{queue}-none")
    ask("by unknown id", NOBODY)
    ask("nothing")


def delete_records(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    made(wire, queue)
    wire.produce(queue, batch(*[b"v"] * 5))
    for what, name, index, offset in (
        ("known", queue, 0, 2), ("all", queue, 0, -1), ("beyond", queue, 0, 99),
        ("negative", queue, 0, -2), ("unknown queue", f"{queue}-none", 0, 1),
        ("unknown partition", queue, 7, 1),
    ):  # fmt: skip
        parts = [{"partition_index": index, "offset": offset}]
        values = {"topics": [{"name": name, "partitions": parts}], "timeout": 9000}
        asked.each(what, ApiKey.DELETE_RECORDS, values)


def create_partitions(asked: Asked) -> None:
    queue = asked.name
    made(asked.wire, queue)

    def grown(version: int, **changes: Any) -> Values:
        topic = {"name": queue, "count": version + 2, "assignments": None} | changes
        return {"topics": [topic], "timeout": 9000, "validate_only": False}

    asked.each("more", ApiKey.CREATE_PARTITIONS, grown)
    for what, changes in (
        ("fewer", {"count": 1}), ("unknown queue", {"name": f"{queue}-none"}),
        ("a stranger's", {"count": 6, "assignments": [{"broker_ids": (99,)}]}),
    ):  # fmt: skip
        asked.each(what, ApiKey.CREATE_PARTITIONS, partial(grown, **changes))


def topic_partitions(asked: Asked) -> None:
    made(asked.wire, asked.name, 2)
    for what, names in (
        ("known", (asked.name,)), ("unknown", (f"{asked.name}-none",)), ("bad", ("a b",)),
    ):  # fmt: skip
        values = {"topics": [{"name": n} for n in names], "cursor": None}
        asked.each(what, ApiKey.DESCRIBE_TOPIC_PARTITIONS, values)


def producers(asked: Asked) -> None:
    made(asked.wire, asked.name)
    for what, name, index in (
        ("known", asked.name, 0), ("unknown partition", asked.name, 4),
        ("unknown queue", f"{asked.name}-none", 0),
    ):  # fmt: skip
        values = {"topics": [{"name": name, "partition_indexes": (index,)}]}
        asked.each(what, ApiKey.DESCRIBE_PRODUCERS, values)


def with_id(wire: Wire, queue: str) -> UUID:
    """Make a queue where it is not there yet, and return its id."""
    with unheard():
        if wire.metadata(queue, create=False).topics[0].error_code:
            made(wire, queue)
        found: UUID = eventually(lambda: wire.metadata(queue, create=False).topics[0].topic_id)
    return found


SITUATIONS = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: for_leader_epoch,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topic_partitions,
    ApiKey.DESCRIBE_PRODUCERS: producers,
}
