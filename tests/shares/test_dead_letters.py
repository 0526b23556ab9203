"""The content of dead letters, their target, their waits, and their end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import anyio
import pytest
from anyio import to_thread

from kproxy.common.errors import Code
from kproxy.log.base import Ticket
from kproxy.metadata.group_settings import GroupSettings
from kproxy.metadata.lane_settings import LaneRules
from kproxy.metadata.queue_settings import settings_of
from kproxy.protocol import record_runs, records
from kproxy.protocol.batch import check, read_header, stamp
from kproxy.protocol.made_batches import Content, header, record
from kproxy.protocol.made_batches import batch as made_batch
from kproxy.protocol.records import keyed_records, unpacked, with_records
from kproxy.security.acls import Acls
from kproxy.security.peer import NOBODY
from kproxy.security.permits import Permits
from kproxy.security.quotas import NO_LIMIT
from kproxy.shard.copier import copy_of
from kproxy.shares import dead_letter_batches, dead_letter_sender, dead_letters
from kproxy.shares.dead_letter_targets import ENABLE
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue, GrowQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.commands.shares import (
    EARLIEST,
    OWED,
    AimForward,
    Cause,
    ChangeShares,
    Forward,
    Run,
    SetShares,
    ShareAction,
    ShareChange,
    ShareRuns,
)
from kproxy.virtual.rows.kinds import RowKind, swept_ranges
from kproxy.virtual.rows.shares import FORWARD_TARGETS, RecordState, state_byte
from kproxy.virtual.types import PartitionKey
from tests.fakes import MemoryShard, refused_append
from tests.harness import until
from tests.held import HELD_S, held_by, slowness
from tests.simulation import virtual_time
from tests.simulation.routes import dead_letters as simulated
from tests.simulation.routes.dead_letters import Letter, Queues, id_of, letters_in
from tests.simulation.virtual_time import Inline
from tests.wire import batch, keyed

NOW_MS = 1_700_000_000_000
SOURCE: PartitionKey = (id_of("source"), 0)
DLQ = "dlq.a"
ENABLED = {ENABLE: "true"}


class Stage:
    """A shard in memory, its owner's dead letters, and a source of two partitions."""

    shards = 1

    def __init__(self, **config: Any) -> None:
        self.shard: Any = MemoryShard()
        self.queues = Queues()
        self.settings: Any = {"g": self.setting(DLQ), "h": self.setting("dlq.b")}
        self.asked: list[Envelope] = []
        self.made: list[CreateQueue] = []
        self.dead = simulated.dead_letters(lambda: [self.shard], self, self, **config)
        self.counters = self.dead._shared.counters
        self.create("source", 2)
        changes = [
            ShareChange((SOURCE[0], index), ShareAction.INITIALISE, 1, EARLIEST) for index in (0, 1)
        ]
        for group in self.settings:
            self.shard.apply(SetShares(group, changes, 1).envelope())

    @staticmethod
    def setting(queue: str, copies: bool = True) -> GroupSettings:
        return GroupSettings(dead_letter_queue=queue, dead_letter_copies_record=copies)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        assert not self.shard.apply(CreateQueue(id_of(name), name, partitions, {}).envelope()).code
        self.queues.put(name, id_of(name), partitions, **configs)

    def put(self, data: bytes, key: PartitionKey = SOURCE) -> int:
        return int(self.shard.apply(Envelope(Kind.APPEND, *key, body=data)).number)

    def lose(
        self, *runs: tuple[int, int], group: str = "g", cause: Cause = Cause.REJECTED,
        deliveries: int = 3, key: PartitionKey = SOURCE, epoch: int = 1,
    ) -> None:  # fmt: skip
        """Archive records, which are owed then: (first, how many)."""
        byte = state_byte(RecordState.ARCHIVED, deliveries)
        asked = [Run(*run, byte, cause | OWED) for run in runs]
        change = ChangeShares(group, [ShareRuns(key, epoch, asked)], 9)
        outcome = self.shard.apply(change.envelope())
        assert outcome.codes == (0,)

    # -- routes

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        self.asked.append(envelope)
        return self.shard.append([envelope])  # type: ignore[no-any-return]

    def submit(self, name: str, envelope: Envelope) -> Ticket:
        asked = CreateQueue.decode(envelope)
        self.made.append(asked)
        ticket = self.shard.append([envelope])
        self.queues.put(name, envelope.queue_id, asked.partitions, **asked.configs)
        return ticket  # type: ignore[no-any-return]

    # -- what came of it

    def letters(self, name: str = DLQ) -> list[Letter]:
        queue = self.queues.by_name[name]
        return [
            letter
            for index in range(queue.partitions)
            for letter in letters_in(self.shard, name, (queue.queue_id, index))
        ]

    def offsets(self, name: str = DLQ) -> list[int]:
        return [int(letter.headers["__dlq.errors.offset"]) for letter in self.letters(name)]

    def owed(self) -> int:
        return sum(1 for _ in self.shard.kv.scan(*RowKind.DEAD_LETTER.range()))

    def play(self, *steps: Callable[[], Any], seconds: float = 2.0) -> None:
        """Run the sender so long, then do the first step, and so on. It begins anew."""
        self.dead._senders._parts.clear()

        async def main() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.dead.run)
                await anyio.sleep(seconds)
                for step in steps:
                    step()
                    await anyio.sleep(seconds)
                tasks.cancel_scope.cancel()

        virtual_time.run(main)


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_sender, "to_thread", Inline)


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.create(DLQ, **ENABLED)
    return made


# -- what they say


def with_headers() -> bytes:
    """Return a batch of one record with a header of its own."""
    own = header("trace", "7")
    body = record(0, Content(b"key", b"value", 1, own), [])
    return batch(b"", packed=body)


def test_a_copy_has_the_record_and_says_where_it_is_from(stage: Stage) -> None:
    stage.put(keyed((b"other", b"one")))
    stage.put(with_headers())
    stage.lose((1, 1), deliveries=3)
    stage.play()
    (letter,) = stage.letters()
    assert (letter.key, letter.value) == (b"key", b"value")
    assert list(letter.headers.items()) == [
        ("trace", "7"), ("__dlq.errors.topic", "source"), ("__dlq.errors.partition", "0"),
        ("__dlq.errors.offset", "1"), ("__dlq.errors.group", "g"),
        ("__dlq.errors.delivery.count", "3"),
        ("__dlq.errors.message", "Offset rejected by client."),
        ("kproxy.dlq.cause", "rejected"),
    ]  # fmt: skip
    assert stage.counters.dead_letters == 1
    assert not stage.owed()


def test_without_a_copy_it_says_only_where_it_is_from(stage: Stage) -> None:
    stage.settings["g"] = Stage.setting(DLQ, copies=False)
    stage.put(with_headers())
    stage.lose((0, 1), cause=Cause.DELIVERY_LIMIT, deliveries=5)
    stage.play()
    (letter,) = stage.letters()
    assert (letter.key, letter.value) == (None, None)
    assert "trace" not in letter.headers
    assert letter.headers["__dlq.errors.delivery.count"] == "5"
    assert letter.headers["__dlq.errors.message"] == "Offset delivery count exceeded the threshold."
    assert letter.headers["kproxy.dlq.cause"] == "delivery limit"


def test_records_unreadable_to_the_signer_are_not_copied(stage: Stage) -> None:
    """FAULT: who may alter a share group's settings read all that the group reads."""

    class Rights:
        may, asked = False, ""

        def permits(self, signature: str | None) -> Any:
            self.asked = signature or ""
            rules: Any = type("Rules", (), {"generation": 0, "acls": Acls()})()
            return Permits(NOBODY, rules, everything=self.may)

        def mutations(self, signature: str | None) -> Any:
            return NO_LIMIT

    rights = stage.dead._shared.behalf = Rights()
    stage.settings["g"] = replace(Stage.setting(DLQ), dead_letters_set_by="10.0.0.9 User:mallory")
    stage.put(with_headers())
    stage.put(with_headers())

    def lose_another() -> None:
        rights.may = True
        stage.lose((1, 1))

    stage.lose((0, 1))
    stage.play(lose_another)
    secret, copied = stage.letters()
    assert (secret.key, secret.value) == (None, None)
    assert "trace" not in secret.headers
    assert (copied.key, copied.value) == (b"key", b"value"), "asked at each use"
    assert rights.asked == "10.0.0.9 User:mallory"


@pytest.mark.parametrize("kept", [1, 20, 1 << 20])
def test_a_batch_of_any_size_is_read_in_pieces(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """FAULT: of a batch of over 200,000 records, or 32 MiB unpacked, only the places were told."""
    stage.put(keyed(*[(b"k%d" % n, b"v%d" % n) for n in range(20)], codec=1))
    for run in ((17, 3), (3, 4), (0, 1)):  # not in the order of their offsets
        stage.lose(run)
    with monkeypatch.context() as small:
        for limit in ("INSPECTED_BYTES_MAX", "INSPECTED_RECORDS_MAX"):
            small.setattr(records, limit, 3)
        small.setattr(dead_letter_batches, "_KEPT_BYTES", kept)
        small.setattr(record_runs, "RUN_RECORDS", 4)
        small.setattr(record_runs, "PIECE_BYTES", 16)
        stage.play()
    found = [(one.key, one.value) for one in stage.letters()]
    assert found == [(b"k%d" % n, b"v%d" % n) for n in (17, 18, 19, 3, 4, 5, 6, 0)]


def test_records_that_are_owed_twice_keep_what_they_hold(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: once a plan had read more than it keeps, the second letter of a record was empty."""
    stage.put(keyed(*[(b"k%d" % n, b"v%d" % n) for n in range(10)], codec=1))
    stage.lose((0, 10))
    back = [ShareChange(SOURCE, ShareAction.RESET, 2, 0)]
    assert not stage.shard.apply(SetShares("g", back, 1).envelope()).code
    stage.lose((0, 10), epoch=2)
    monkeypatch.setattr(dead_letter_batches, "_KEPT_BYTES", 20)
    stage.play()
    assert [one.value for one in stage.letters()] == [b"v%d" % n for n in [*range(10)] * 2]


def test_records_before_what_cannot_be_read_keep_what_they_hold(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_runs, "RUN_RECORDS", 2)
    data = bytearray(keyed(*[(b"k%d" % n, b"v%d" % n) for n in range(5)]))
    data[data.index(b"k3") - 5] = 0x7F  # its length
    stamp(data, None)  # the client's CRC is right
    stage.put(bytes(data))
    stage.lose((0, 5))
    stage.play()
    assert [one.value for one in stage.letters()] == [b"v0", b"v1", None, None, None]


@pytest.mark.parametrize("stamped", [False, True])
def test_its_batch_is_one_that_a_client_might_have_sent(stage: Stage, *, stamped: bool) -> None:
    if stamped:
        stage.queues.put(
            DLQ, id_of(DLQ), 1, **ENABLED, **{"message.timestamp.type": "LogAppendTime"}
        )
    stage.put(keyed((b"k", b"v"), (b"k", None), (None, b"x"), codec=4))
    stage.lose((0, 3))
    stage.play()
    (forward,) = stage.asked
    found = check(Forward.decode(forward).batch, 1 << 20, 13)
    assert found.record_count == 3
    assert found.base_timestamp == found.max_timestamp == NOW_MS
    assert (found.codec, found.is_log_append_time) == (0, stamped)
    assert [(one.key, one.value) for one in stage.letters()] == [
        (b"k", b"v"), (b"k", None), (None, b"x")
    ]  # fmt: skip
    assert forward.number > NOW_MS  # when to look at its retention


def test_the_partition_is_the_sources(stage: Stage) -> None:
    stage.create("dlq.b", 3, **ENABLED)
    stage.shard.apply(GrowQueue(SOURCE[0], 5).envelope())
    stage.queues.put("source", SOURCE[0], 5)
    last = SOURCE[0], 4
    stage.shard.apply(
        SetShares("h", [ShareChange(last, ShareAction.INITIALISE, 1, EARLIEST)], 1).envelope()
    )
    stage.put(batch(b"v"), last)
    stage.lose((0, 1), group="h", key=last)
    stage.play()
    (letter,) = stage.letters("dlq.b")
    assert (letter.partition, letter.headers["__dlq.errors.partition"]) == (1, "4")


# -- records that are not there


def compact(stage: Stage, last_offset: int, *kept: int) -> None:
    """Keep only these records of the batch that ends there."""
    found = stage.shard.state.batch_at(SOURCE, last_offset)
    data = memoryview(bytearray(found.length))
    stage.shard.segments.read_into(data, found.segment, found.position, True)
    head = read_header(data)
    records = [one for one in keyed_records(head, unpacked(data)) if one.offset_delta in kept]
    made = with_records(head, [one.data for one in records], 1)
    assert not stage.shard.apply(copy_of(SOURCE, last_offset, found, made, 1)).code


def test_gaps_are_no_dead_letters_but_what_was_rejected_is_one(stage: Stage) -> None:
    stage.put(batch(b"0", b"1", b"2", b"3"))
    stage.put(batch(b"4"))
    compact(stage, 3, 0, 3)
    stage.lose((0, 5), cause=Cause.DELIVERY_LIMIT)
    stage.lose((0, 5), group="h")
    stage.create("dlq.b", **ENABLED)
    stage.play()
    assert stage.offsets() == [0, 3, 4]
    assert [one.value for one in stage.letters("dlq.b")] == [b"0", None, None, b"3", b"4"]
    assert stage.offsets("dlq.b") == [0, 1, 2, 3, 4]


def test_markers_are_none_and_where_only_such_are_owed_nothing_is_sent(stage: Stage) -> None:
    stage.put(batch(b"marker", attributes=0x20))
    stage.put(batch(b"1"))
    stage.lose((0, 1), (1, 1))
    stage.play()
    assert stage.offsets() == [1]
    stage.put(batch(b"marker", attributes=0x20))
    stage.lose((2, 1))
    stage.play()
    assert len(stage.asked) == 1
    assert not stage.owed()


def test_headers_of_trimmed_records_are_sent(stage: Stage) -> None:
    for value in (b"0", b"1", b"2"):
        stage.put(batch(value))
    stage.lose((0, 3))
    stage.shard.apply(Trim(*SOURCE, 2, 1).envelope())
    stage.play()
    assert [one.value for one in stage.letters()] == [None, None, b"2"]


def test_headers_of_unreadable_records_are_sent(stage: Stage) -> None:
    stage.put(batch(b"", b"", packed=b"\x7f", attributes=4))
    stage.put(batch(b"2"))
    stage.lose((0, 3))
    stage.play()
    assert [one.value for one in stage.letters()] == [None, None, b"2"]


# -- how large they are


def test_a_record_that_is_too_large_for_its_queue_goes_without_what_it_holds(stage: Stage) -> None:
    stage.queues.put(DLQ, id_of(DLQ), 1, **ENABLED, **{"max.message.bytes": "2000"})
    stage.put(keyed((b"k", b"v" * 1500), (b"k", b"v" * 2000), (b"k", b"v" * 1000)))
    stage.lose((0, 3))
    stage.play()
    assert [None if one.value is None else len(one.value) for one in stage.letters()] == [
        1500, None, 1000
    ]  # fmt: skip
    assert all(len(Forward.decode(one).batch) <= 2000 for one in stage.asked)


def test_a_long_run_goes_in_several_batches(stage: Stage) -> None:
    for _ in range(40):
        stage.put(batch(*[bytes(10_000)] * 10, attributes=0))
    stage.lose((0, 400))
    stage.play(seconds=5)
    assert stage.offsets() == list(range(400))
    assert 4 <= len(stage.asked) <= 8
    assert all(len(Forward.decode(one).batch) <= 1 << 20 for one in stage.asked)


def test_many_small_runs_go_in_one_batch(stage: Stage) -> None:
    stage.put(batch(*[b"v"] * 300))
    for offset in range(0, 300, 2):
        stage.lose((offset, 1))
    stage.play()
    assert stage.offsets() == list(range(0, 300, 2))
    assert len(stage.asked) == 1


# -- what they wait for


def reasons_to_wait(stage: Stage) -> Iterator[Callable[[], Any]]:
    """Yield the faults of the dead-letter queue, one after the other."""
    yield lambda: None  # it is absent
    yield lambda: stage.create(DLQ)  # it is not meant to be one

    def named() -> None:
        stage.create("other", **ENABLED)
        stage.settings["g"] = Stage.setting("other")

    yield named


def test_they_wait_for_their_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    stage = Stage()
    warned = stage.dead._shared.warn
    monkeypatch.setattr(
        stage.dead._shared, "warn",
        lambda event, **more: said.append(more["reason"]) or warned(event, **more),  # type: ignore[func-returns-value]
    )  # fmt: skip
    stage.put(batch(b"0", b"1"))
    stage.lose((0, 2))
    stage.play(*reasons_to_wait(stage), seconds=30)
    assert stage.owed() == 1
    assert not stage.asked
    assert "there is no such queue" in said[0]
    stage.settings["g"] = Stage.setting(DLQ)
    stage.queues.put(DLQ, id_of(DLQ), 1, **ENABLED)
    stage.play()
    assert stage.offsets() == [0, 1]
    assert stage.counters.dead_letters_blocked >= 1
    assert not stage.counters.dead_letters_dropped


def test_others_do_not_wait_with_them(stage: Stage) -> None:
    """And they are sent once there is a queue, all of them and in order."""
    stage.put(batch(*[b"v"] * 500))
    for offset in range(0, 500, 2):
        stage.lose((offset, 1), group="h")
        stage.lose((offset, 1))
    stage.play()
    assert stage.offsets() == list(range(0, 500, 2))
    stage.play(lambda: stage.create("dlq.b", **ENABLED))
    assert stage.offsets("dlq.b") == list(range(0, 500, 2))
    assert not stage.owed()


def test_waiting_dead_letters_are_not_read_again_and_again(stage: Stage) -> None:
    stage.put(batch(*[b"v"] * 500))
    for offset in range(0, 500, 2):
        stage.lose((offset, 1), group="h")
    read = 0
    scan = stage.shard.kv.scan

    def counted(start: bytes, end: bytes) -> Iterator[Any]:
        nonlocal read
        for found in scan(start, end):
            read += RowKind.DEAD_LETTER.of(found[0])
            yield found

    stage.shard.kv.scan = counted
    stage.play(seconds=60)
    assert read < 1000


def test_the_queue_is_made_where_that_is_wanted() -> None:
    stage = Stage(errors_deadletterqueue_auto_create_topics_enable=True)
    stage.put(batch(b"0"))
    stage.lose((0, 1))
    stage.play(seconds=5)
    assert stage.offsets() == [0]
    (made,) = stage.made
    assert (made.name, made.partitions) == (DLQ, 1)
    assert made.configs == {ENABLE: "true", "message.timestamp.type": "CreateTime"}


def test_one_whose_name_is_not_allowed_is_not_made() -> None:
    stage = Stage(errors_deadletterqueue_auto_create_topics_enable=True)
    stage.settings["g"] = Stage.setting("other")
    stage.put(batch(b"0"))
    stage.lose((0, 1))
    stage.play(seconds=5)
    assert not stage.made


# -- what is dropped


def test_pending_dead_letters_are_dropped_some_time_after_the_setting(stage: Stage) -> None:
    stage.put(batch(b"0", b"1"))
    stage.settings["g"] = Stage.setting("")
    stage.lose((0, 1))
    set_again = stage.settings.copy() | {"g": Stage.setting(DLQ)}
    stage.play(lambda: stage.settings.update(set_again), seconds=8)
    assert stage.offsets() == [0]
    stage.settings["g"] = Stage.setting("")
    stage.lose((1, 1))
    stage.play(seconds=15)
    assert not stage.owed()
    assert stage.offsets() == [0]
    assert stage.counters.dead_letters_dropped == 1


def test_a_queue_is_not_fed_from_itself(stage: Stage) -> None:
    stage.settings["g"] = Stage.setting("dlq.source")
    stage.queues.put("dlq.source", SOURCE[0], 2, **ENABLED)
    stage.put(batch(b"0", b"1"))
    stage.lose((0, 2))
    stage.play()
    assert not stage.owed()
    assert not stage.asked
    assert stage.counters.dead_letters_dropped == 2


def test_with_its_source_what_is_owed_goes(stage: Stage) -> None:
    stage.put(batch(b"0", b"1"))
    stage.lose((0, 2))
    stage.shard.apply(DeleteQueue(SOURCE[0]).envelope())
    stage.play()
    assert not stage.owed()
    assert stage.counters.dead_letters_dropped == 2


def test_a_queue_that_is_deleted_and_made_again_gets_what_comes_then(stage: Stage) -> None:
    stage.put(batch(b"0", b"1", b"2"))
    stage.lose((0, 1))

    def delete() -> None:
        assert stage.offsets() == [0]
        del stage.queues.by_name[DLQ]
        stage.shard.apply(DeleteQueue(id_of(DLQ)).envelope())
        stage.lose((1, 1))

    def make() -> None:
        again = id_of("again")
        stage.shard.apply(CreateQueue(again, DLQ, 1, {}).envelope())
        stage.queues.put(DLQ, again, 1, **ENABLED)
        stage.lose((2, 1))

    stage.play(delete, make)
    assert stage.offsets() == [1, 2]


def test_one_that_is_gone_before_others_know_is_tried_again(stage: Stage) -> None:
    """The announcement of its end comes late."""
    stage.put(batch(b"0"))
    stage.lose((0, 1))
    stage.shard.apply(DeleteQueue(id_of(DLQ)).envelope())

    def make() -> None:
        assert stage.owed() == 1
        again = id_of("again")
        stage.shard.apply(CreateQueue(again, DLQ, 1, {}).envelope())
        stage.queues.put(DLQ, again, 1, **ENABLED)

    stage.play(make, seconds=5)
    assert stage.offsets() == [0]
    assert not stage.owed()


# -- how much is owed


def test_no_more_is_owed_than_there_is_room_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "OWED_MAX", 100)
    stage.settings["n"] = Stage.setting("")
    dead, shard = stage.dead, stage.shard
    assert dead.owes(shard, "g")
    assert not dead.owes(shard, "n")
    stage.put(batch(*[b"v"] * 300))
    for first in range(0, 100, 25):
        assert dead.owes(shard, "h")
        stage.lose((first, 25), group="h")
    assert not dead.owes(shard, "h", 7)
    assert stage.counters.dead_letters_refused == 7
    assert dead.owes(shard, "g")
    stage.play(lambda: stage.create("dlq.b", **ENABLED))
    assert dead.waiting(shard, "h") == 0
    assert dead.owes(shard, "h")


def test_pending_dead_letters_count_after_a_start(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "OWED_MAX", 100)
    stage.put(batch(*[b"v"] * 2000))
    for first in range(0, 2000, 4):
        stage.lose((first, 1), group="h")
    stage.play()
    again = simulated.dead_letters(lambda: [stage.shard], stage, stage)
    stage.dead = again
    stage.play()
    assert again.waiting(stage.shard, "h") == 500
    assert not again.owes(stage.shard, "h")


def test_a_shard_that_is_served_by_another_claim_is_begun_anew(stage: Stage) -> None:
    stage.put(batch(b"0", b"1"))
    stage.lose((0, 1))

    def claimed() -> None:
        stage.shard.claim_offset += 1
        stage.lose((1, 1))

    stage.play(claimed)
    assert stage.offsets() == [0, 1]
    assert stage.counters.dead_letters == 2


def test_rows_of_targets_go_with_their_sources(stage: Stage) -> None:
    stage.put(batch(b"0"))
    stage.lose((0, 1))
    stage.play()
    key = FORWARD_TARGETS.key(SOURCE, "g")
    assert FORWARD_TARGETS.decode(stage.shard.kv.rows[key]).target == (id_of(DLQ), 0)
    ranges = list(swept_ranges(SOURCE[0]))
    assert sum(start <= key < end for start, end in ranges) == 1
    assert list(islice(stage.shard.kv.scan(*RowKind.FORWARDED.range()), 2))


def test_target_is_set_by_the_owner_and_not_by_a_late_one(stage: Stage) -> None:
    shard, key = stage.shard, FORWARD_TARGETS.key(SOURCE, "g")

    def aim(partition: int, after: int, writer: int = 7) -> Code:
        asked = AimForward(SOURCE, "g", (id_of(DLQ), partition), after).envelope()
        asked.writer = writer
        return Code(shard.apply(asked).code)

    claim = Claim().envelope()
    claim.writer = 7
    shard.apply(claim)
    assert aim(0, -1, writer=8) == Code.NOT_LEADER_OR_FOLLOWER
    assert aim(0, -1) == Code.NONE
    first = len(shard.log) - 1
    assert aim(1, -1) == Code.NOT_LEADER_OR_FOLLOWER  # it was sent before
    assert FORWARD_TARGETS.decode(shard.kv.rows[key]) == ((id_of(DLQ), 0), first)
    assert aim(1, first) == Code.NONE
    assert aim(1, first) == Code.NOT_LEADER_OR_FOLLOWER
    assert FORWARD_TARGETS.decode(shard.kv.rows[key]) == ((id_of(DLQ), 1), first + 2)


def test_one_that_nobody_waits_for_any_more_is_overtaken(stage: Stage) -> None:
    """It may still land: what is sent elsewhere meanwhile goes once that is settled."""
    stage.put(batch(b"0"))
    stage.lose((0, 1))
    stage.create("dlq.b", **ENABLED)
    append, late = stage.shard.append, []

    def lossy(envelopes: Sequence[Envelope]) -> Ticket:
        if envelopes[0].kind == Kind.AIM_FORWARD and not late:
            late.extend(envelopes)
            stage.settings["g"] = Stage.setting("dlq.b")
            return refused_append(envelopes, Code.REQUEST_TIMED_OUT)
        found: Ticket = append(envelopes)
        return found

    stage.shard.append = lossy
    stage.play()
    assert stage.shard.apply(late[0]).code  # it has no effect any more
    assert (stage.offsets(), stage.offsets("dlq.b")) == ([], [0])


async def test_many_hold_nobody_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_sender, "to_thread", to_thread)
    for _ in range(2):
        stage.put(batch(*[bytes(100)] * 1000))
    for offset in range(0, 2000, 2):
        stage.lose((offset, 1))
    end = stage.put(batch(*[b"x"] * 30_000))
    stage.lose((end, 20_000))

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.dead.run)
            await until(lambda: not stage.owed())
            tasks.cancel_scope.cancel()

    _, held = await held_by(work())
    assert len(stage.offsets()) == 21_000
    assert held < HELD_S * slowness()


# -- what their queue demands of whatever is appended to it


def test_dead_letters_without_a_key_stay_in_a_compacted_queue(stage: Stage) -> None:
    """FAULT: compaction took all of them, as it takes what has no key. Produce refuses those."""
    stage.create("dlq.b", **ENABLED, **{"cleanup.policy": "compact"})
    stage.put(keyed((b"k", b"1"), (None, b"2"), (None, b"3")))
    stage.lose((0, 3), group="h")
    stage.play()
    settings = settings_of(stage.queues.by_name["dlq.b"].configs)
    keys = [one.key for one in stage.letters("dlq.b")]
    assert keys == [b"k", b"source/0/1/h", b"source/0/2/h"]
    assert all(settings.demands.fault_of(key, NOW_MS, NOW_MS) is None for key in keys)
    made = [one.headers.get("kproxy.dlq.key") for one in stage.letters("dlq.b")]
    assert made == [None, "made", "made"]


def test_oversized_dead_letter_for_a_compacted_queue_keeps_its_key(stage: Stage) -> None:
    configs = {"cleanup.policy": "compact", "max.message.bytes": "1000"}
    stage.create("dlq.b", **ENABLED, **configs)
    stage.put(keyed((b"k", b"v" * 2000), (b"k" * 2000, b"v")))
    stage.lose((0, 2), group="h")
    stage.play()
    assert [one.key for one in stage.letters("dlq.b")] == [b"k", b"source/0/1/h"]


def test_dead_letters_are_packed_as_their_queue_says(stage: Stage) -> None:
    stage.create("dlq.b", **ENABLED, **{"compression.type": "zstd"})
    stage.put(keyed((b"k", b"v" * 1000), (b"k", b"v" * 1000)))
    stage.lose((0, 2), group="h")
    stage.play()
    (forward,) = stage.asked
    found = check(Forward.decode(forward).batch, 1 << 20, 13)
    assert (found.codec, found.record_count) == (4, 2)
    assert [one.value for one in stage.letters("dlq.b")] == [b"v" * 1000] * 2


def test_a_compacted_queue_is_compacted_once_dead_letters_came(stage: Stage) -> None:
    """FAULT: nobody said so, and it was looked at with its retention, a day later perhaps."""
    create = CreateQueue(id_of("dlq.b"), "dlq.b", 1, {"cleanup.policy": "compact"})
    assert not stage.shard.apply(create.envelope()).code
    stage.queues.put("dlq.b", id_of("dlq.b"), 1, **ENABLED, **{"cleanup.policy": "compact"})
    stage.put(keyed((b"k", b"1")))
    stage.lose((0, 1), group="h")
    stage.play()
    assert stage.shard.state.shipped_to == {(id_of("dlq.b"), 0)}


def test_one_whose_row_is_in_another_shard_is_looked_at_too(stage: Stage) -> None:
    """FAULT: of a partition beside its queue's home nobody said so."""
    stage.put(keyed((b"k", b"1")))
    stage.lose((0, 1))
    stage.shard.state.queue_by_id = lambda queue_id: None
    stage.play()
    assert stage.shard.state.shipped_to == {(id_of(DLQ), 0)}


# -- what cannot be sent


def sent_until_mended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, readable_from: int, seconds: float
) -> list[bytes | None]:
    """Play while nothing before a place in the segments can be read; what was sent until then.

    The disk is mended after `seconds`, and the play goes on.
    """
    read, broken = stage.shard.segments.read_into, [True]

    def read_into(buffer: memoryview, segment: int, position: int, wait: bool) -> bool:
        if broken and position < readable_from:
            raise OSError("the disk does not answer")
        return bool(read(buffer, segment, position, wait))

    monkeypatch.setattr(stage.shard.segments, "read_into", read_into)
    seen: list[bytes | None] = []

    def mend() -> None:
        seen.extend(one.value for one in stage.letters())
        broken.clear()

    stage.play(mend, seconds=seconds)
    return seen


def test_sources_that_cannot_be_read_hold_up_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: each took one of 16 places for as long as it could not be read, for ever perhaps."""
    keys = [(SOURCE[0], index) for index in range(20)]
    stage.shard.apply(GrowQueue(SOURCE[0], len(keys)).envelope())
    stage.queues.put("source", SOURCE[0], len(keys))
    changes = [ShareChange(key, ShareAction.INITIALISE, 1, EARLIEST) for key in keys[2:]]
    stage.shard.apply(SetShares("g", changes, 1).envelope())
    for number, key in enumerate(keys):
        readable_from = len(stage.shard.segments.data)
        stage.put(batch(b"%d" % number), key)
        stage.lose((0, 1), key=key)
    seen = sent_until_mended(stage, monkeypatch, readable_from, seconds=3)
    assert seen == [b"19"]
    assert sorted(int(one.value or b"") for one in stage.letters()) == list(range(20))


def test_unsendable_dead_letters_leave_room_in_memory_for_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: as many rows as are held, of sources that could not be read, held up all others."""
    monkeypatch.setattr(dead_letter_sender, "_HELD_MAX", 4)
    monkeypatch.setattr(dead_letter_sender, "_LOT", 2)
    other = (SOURCE[0], 1)
    stage.put(batch(*[b"stuck"] * 8))
    for offset in range(8):
        stage.lose((offset, 1))
    readable_from = len(stage.shard.segments.data)
    stage.put(batch(*[b"sent"] * 3), other)
    for offset in range(3):
        stage.lose((offset, 1), key=other)
    seen = sent_until_mended(stage, monkeypatch, readable_from, seconds=6)
    assert seen == [b"sent"] * 3
    assert [one.value for one in stage.letters()] == [b"sent"] * 3 + [b"stuck"] * 8


def test_a_letter_names_the_lane_of_its_record(stage: Stage) -> None:
    rules = LaneRules(header="tenant")
    stage.settings["g"] = replace(stage.setting(DLQ, copies=False), lanes=rules)
    lane = [header("tenant", "gold")]
    stage.put(made_batch([record(0, Content(b"k", b"v"), lane), record(1, Content(b"k", b"v"), [])],
                         NOW_MS))  # fmt: skip
    stage.lose((0, 2))
    stage.play()
    assert [one.headers["kproxy.dlq.lane"] for one in stage.letters()] == ["gold", ""]
    assert [one.key for one in stage.letters()] == [None, None]
