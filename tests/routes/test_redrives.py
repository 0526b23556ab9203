"""Redrives over a log on disk, embedded: what is passed on as what, how fast, and when not."""

from pathlib import Path

import pytest

from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.protocol.varint import Malformed
from kproxy.routes import redrive_pace
from kproxy.routes.redrive_pace import ANY_NUMBER, RedrivePace
from kproxy.routes.redriving import without_own
from kproxy.security.acls import Binding, Effect, Op, Pattern, Resource
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import LogOffset, QueueId
from kproxy.worker.worker import Worker
from tests.harness import until
from tests.routes.test_passages import configure, contents, create, read, serving
from tests.simulation.routes.dead_letters import headers_of
from tests.wire import TODAY_MS

pytestmark = pytest.mark.anyio
TO, JOB, RATE = "kproxy.redrive.to", "kproxy.redrive.job", "kproxy.redrive.rate"
PAUSED = "kproxy.redrive.paused"
ORIGIN = ("__dlq.errors.topic", "jobs")


def letter(key: bytes | None, value: bytes | None, *headers: tuple[str, str]) -> bytes:
    return body_of(Content(key, value), [header(*one) for one in headers])


async def put(worker: Worker, queue: Queue, *letters: bytes) -> None:
    made = batch_of_bodies([(one, TODAY_MS) for one in letters], 0)
    append = Envelope(Kind.APPEND, queue.queue_id, 0, body=made)
    await worker.any_shard().append([append]).wait()


def headers(worker: Worker, name: str) -> list[dict[str, str]]:
    return [headers_of(one.header_bytes, one.headers) for one in contents(worker, name)]


async def test_a_letter_becomes_its_record_again_and_counts_how_often(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        await put(
            worker, dead,
            letter(b"k", b"1", ("mine", "x"), ORIGIN, ("kproxy.dlq.cause", "rejected")),
            letter(None, b"2", ORIGIN, ("kproxy.redriven", "2")),
            letter(b"jobs/0/7/g", b"3", ORIGIN, ("kproxy.dlq.key", "made")),
            letter(b"k", None, ORIGIN),
        )  # fmt: skip
        await configure(worker, dead, {TO: "*"})
        await until(lambda: len(contents(worker, "jobs")) == 4)
        found = [(one.key, one.value) for one in contents(worker, "jobs")]
        assert found == [(b"k", b"1"), (None, b"2"), (None, b"3"), (b"k", None)]
        assert headers(worker, "jobs") == [
            {"mine": "x", "kproxy.redriven": "1"}, {"kproxy.redriven": "3"},
            {"kproxy.redriven": "1"}, {"kproxy.redriven": "1"},
        ]  # fmt: skip
        assert worker.counters.redriven == worker.counters.routed == 4


async def test_letters_that_cannot_be_redriven_stay_and_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        await put(
            worker, dead,
            letter(None, None, ORIGIN),  # it has no copy of its record
            letter(b"dlq.a/0/7/g", None, ORIGIN, ("kproxy.dlq.key", "made")),
            letter(b"k", b"v"),
            letter(b"k", b"v", ("__dlq.errors.topic", "__internal")),
            letter(b"k", b"v", ("__dlq.errors.topic", "dlq.a")),
            letter(b"k", b"v", ORIGIN, ("kproxy.redriven", "3")),
            letter(b"k", b"last", ORIGIN),
        )  # fmt: skip
        await configure(worker, dead, {TO: "*"})
        await until(lambda: read(worker, "jobs") == [b"last"])
        assert worker.counters.route_passed_over == 6
        assert len(contents(worker, "dlq.a")) == 7


async def test_letters_without_a_key_do_not_go_back_to_a_compacted_queue(tmp_path: Path) -> None:
    """FAULT: they came there and vanished with its next compaction, and nothing said so."""
    compacted = {"cleanup.policy": "compact"}
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        await create(worker, "latest", compacted)
        latest = ("__dlq.errors.topic", "latest")
        await put(
            worker, dead,
            letter(b"k", b"1", latest),
            letter(None, b"2", latest),
            letter(b"latest/0/7/g", b"3", latest, ("kproxy.dlq.key", "made")),
            letter(None, b"4", ORIGIN),
        )  # fmt: skip
        await configure(worker, dead, {TO: "*"})
        await until(lambda: read(worker, "jobs") == [b"4"])
        await until(lambda: read(worker, "latest") == [b"1"])
        await until(lambda: worker.counters.route_passed_over == 2)
        assert worker.counters.redriven == 2


async def test_letters_that_came_by_a_route_are_redriven(tmp_path: Path) -> None:
    """FAULT: a dead-letter queue of one group's letters, by a filter, passed nothing on."""
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.all", {})
        some = await create(
            worker, "dlq.some", {"kproxy.route.from": "dlq.all", "kproxy.route.filter": "key:a"}
        )
        await put(worker, dead, letter(b"a", b"1", ORIGIN), letter(b"b", b"2", ORIGIN))
        await until(lambda: read(worker, "dlq.some") == [b"1"])
        await configure(worker, some, {TO: "*"})
        await until(lambda: read(worker, "jobs") == [b"1"])


async def test_a_redrive_ends_where_its_queue_ended_and_another_takes_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        await put(worker, dead, letter(b"k", b"1", ORIGIN))
        await configure(worker, dead, {TO: "*", JOB: "1"})
        await until(lambda: read(worker, "jobs") == [b"1"])
        await put(worker, dead, letter(b"k", b"2", ORIGIN))
        await create(worker, "other", {})
        await configure(worker, dead, {TO: "other", JOB: "2"})
        await until(lambda: read(worker, "other") == [b"1", b"2"])
        assert read(worker, "jobs") == [b"1"]


async def test_a_paused_redrive_waits_and_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        await put(worker, dead, letter(b"k", b"1", ORIGIN))
        await configure(worker, dead, {TO: "*", PAUSED: "true"})
        await until(lambda: worker.counters.routes_held_back > 1)
        assert read(worker, "jobs") == []
        await configure(worker, dead, {PAUSED: "false"})
        await until(lambda: read(worker, "jobs") == [b"1"])


async def test_a_redrive_waits_while_who_has_ordered_it_may_not(tmp_path: Path) -> None:
    async with serving(tmp_path, authorizer="acl") as worker:
        dead = await create(worker, "dlq.a", {})
        await create(worker, "jobs", {})
        await put(worker, dead, letter(b"k", b"1", ORIGIN))

        def allow(op: Op, name: str) -> None:
            rule = Binding(
                Resource.TOPIC, name, Pattern.LITERAL, "User:alice", "*", op, Effect.ALLOW
            )
            worker.security.acls.add(rule)
            worker.security.generation += 1

        allow(Op.READ, "dlq.a")
        await configure(worker, dead, {TO: "jobs", "kproxy.set.by": "10.0.0.1 User:alice"})
        await until(lambda: worker.counters.routes_held_back > 1)
        assert read(worker, "jobs") == []
        allow(Op.WRITE, "jobs")
        allow(Op.CREATE, "jobs")
        await until(lambda: read(worker, "jobs") == [b"1"])


async def test_a_rate_cuts_a_redrive_into_pieces(tmp_path: Path) -> None:
    """Nine a minute: the first one comes at once, the others once the rate is dropped."""
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        await put(worker, dead, *[letter(b"k", b"%d" % n, ORIGIN) for n in range(50)])
        await configure(worker, dead, {TO: "*", RATE: "9/m"})
        await until(lambda: read(worker, "jobs") == [b"0"])
        assert worker.counters.redriven == 1
        await configure(worker, dead, removed=[RATE])
        await until(lambda: len(read(worker, "jobs")) == 50)


async def test_very_many_redrives_with_a_rate_hold_no_other_route_up(tmp_path: Path) -> None:
    """32 routes of a shard run at a time: those that wait give up their turn, keep their rate."""
    async with serving(tmp_path) as worker:
        for n in range(40):
            dead = await create(worker, f"dlq.{n}", {})
            one = letter(b"k", b"v", ("__dlq.errors.topic", f"jobs.{n}"))
            await put(worker, dead, one, one)
            await configure(worker, dead, {TO: "*", RATE: "1/h"})
        source = await create(worker, "in", {})
        await create(worker, "all", {"kproxy.route.from": "in"})
        await put(worker, source, letter(b"k", b"1"))
        await until(lambda: read(worker, "all") == [b"1"])
        await until(lambda: worker.counters.redriven == 40)
        assert all(len(read(worker, f"jobs.{n}")) == 1 for n in range(40))


def queue(rate: str, partitions: int = 1) -> Queue:
    return Queue(
        name="dlq.a", queue_id=QueueId(bytes(16)), partitions=partitions, wanted=partitions,
        created_at=LogOffset(0), changed_at=LogOffset(0), configs={RATE: rate},
    )  # fmt: skip


async def test_a_rate_is_kept_over_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(redrive_pace.anyio, "current_time", lambda: now)
    whole = queue("100/s")
    pace = RedrivePace()
    assert pace.at_once(whole) == 100
    assert pace.at_once(queue("100/s", partitions=4)) == 25
    assert pace.at_once(queue("5/h")) == 1
    assert pace.at_once(queue("")) == ANY_NUMBER
    assert pace.left_s(whole) <= 0
    pace.take(whole, 100)
    assert pace.left_s(whole) == 1
    assert pace.left_s(queue("50/s")) == 2, "a rate that is changed counts at once"
    assert pace.left_s(queue("")) <= 0
    now += 1.5
    pace.take(whole, 100)
    assert pace.left_s(whole) == 0.5, "it catches up with what it was late by"
    now += 60
    pace.take(whole, 100)
    assert pace.left_s(whole) == 1, "but not with a minute"


def test_headers_of_a_letter_are_taken_away_whatever_their_length() -> None:
    names = ("a", "__dlq.errors.offset", "kproxy.dlq.lane", "kproxy.redriven", "n" * 300, "")
    for length in (0, 1, 63, 64, 9000):
        given = [header(name, "v" * length) for name in names]
        kept = [header(name, "v" * length) for name in ("a", "n" * 300, "")]
        content = Content(b"k", b"v", len(given), b"".join(given))
        assert without_own(content) == Content(b"k", b"v", 3, b"".join(kept))
        for end in range(0, len(content.header_bytes), 7):
            with pytest.raises(Malformed):
                without_own(content._replace(header_bytes=content.header_bytes[:end]))
    none = b"\x02a\x01"  # without a value
    assert without_own(Content(None, b"v", 1, none)) == Content(None, b"v", 1, none)
