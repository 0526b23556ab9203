"""Every kind of envelope: its class, its bytes, its traits, and the fold's method for it."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from kproxy.log.disk_space import ALL
from kproxy.log.weight import TURN, weight
from kproxy.loop.steps import at_once
from kproxy.protocol.batch import control_batch, read_header
from kproxy.virtual.commands.access import Secure
from kproxy.virtual.commands.envelope import COPIED, Envelope, Kind, decode
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.commands.groups import ChangeGroup, DeleteGroup
from kproxy.virtual.commands.jobs import ChangeJob
from kproxy.virtual.commands.offsets import (
    CommitOffsets,
    DeleteOffsets,
    ExpireOffsets,
    OffsetCommit,
)
from kproxy.virtual.commands.producers import AllocateProducerId, ForgetProducers
from kproxy.virtual.commands.queues import (
    AssignPartitions,
    ConfigureQueue,
    CreateQueue,
    DeleteQueue,
    DropTombstone,
    ExpireQueue,
    GrowQueue,
    QueueReady,
)
from kproxy.virtual.commands.records import AppendIf, Compact, Trim
from kproxy.virtual.commands.restore import Restored
from kproxy.virtual.commands.shards import Claim, Foreign
from kproxy.virtual.commands.traits import COMMANDS, TRAITS, DiskUse, Traits, of_kind
from kproxy.virtual.commands.transactions import (
    Begin,
    Complete,
    End,
    EndCause,
    Enlist,
    ExpireTransaction,
    InitProducer,
    Marker,
    TransactionCommit,
)
from kproxy.virtual.levels import OLDEST
from kproxy.virtual.rows.kinds import PUBLISHED_BYTES, RowKind
from kproxy.virtual.rows.queues import Compaction
from kproxy.virtual.rows.transactions import Participant, tag_of
from kproxy.virtual.types import QueueId
from tests.fakes import MemoryShard
from tests.virtual.commands import delay_cases, route_cases, share_cases
from tests.wire import batch

Q, OTHER = QueueId(bytes(range(16))), QueueId(bytes(range(16, 32)))
ROW = {
    "epoch": 3, "protocols": [("range", b"meta")], "assigned": b"a", "target": b"t",
    "client_id": "c",
}  # fmt: skip
ID = "000102030405060708090a0b0c0d0e0f"
BINARY_ID = bytes(range(16))


def change(level: int) -> Envelope:
    members: Any = {"m": ROW, "n": None}
    return at_once(
        ChangeGroup.encode("g", 5, "consumer", 1, {"epoch": 3}, members, level=level, time_ms=9)
    )


TRANSACTION_COMMIT = TransactionCommit(
    "g", "m", 3, 7, 4, [OffsetCommit(Q, 1, 5, -1, "meta", False)], 9
)
COMMIT = CommitOffsets("g", "m", 3, [OffsetCommit(Q, 1, 5, -1, "meta", True)], 9)
TAG = b"tag of t"
PARTICIPANTS = [Participant(2, (Q, 1)), Participant(3, group="g")]
CONTROL = bytes.fromhex(
    "0000000000000000" "00000042" "00000000" "02" "0df3b682" "0030" "00000000"
    "0000000000000009" "0000000000000009" "0000000000000007" "0004" "ffffffff" "00000001"
    "20" "00" "00" "00" "08" "0000" "0001" "0c" "0000" "00000000" "00"
)  # fmt: skip
"""The marker of a commit of producer 7, from epoch 4 on, at time 9."""
WRITTEN: list[tuple[Any, Callable[[], Envelope] | None, Kind, tuple[int, int, int], bytes]] = [
    # command, its envelope, kind, (partition, number, time), body: as releases have written them
    (CreateQueue(Q, "q", 3, {"retention.ms": "5"}), None, Kind.CREATE, (0, 0, 0),
     b'{"name":"q","partitions":3,"configs":{"retention.ms":"5"}}'),
    (GrowQueue(Q, 4), None, Kind.GROW, (0, 4, 0), b""),
    (DeleteQueue(Q), None, Kind.DELETE, (0, 0, 0), b""),
    (ConfigureQueue(Q, {"a": "1"}, ["b"], False), None, Kind.CONFIGURE, (0, 0, 0),
     b'{"set":{"a":"1"},"drop":["b"],"all":false}'),
    (ConfigureQueue(Q, {}, [], True, True), None, Kind.CONFIGURE, (0, 0, 0),
     b'{"set":{},"drop":[],"all":true,"waits":true}'),
    (Trim(Q, 2, 7, 9), None, Kind.TRIM, (2, 7, 9), b""),
    (Trim(Q, 2, 7, 9, spares=True), None, Kind.TRIM, (2, 7, 9), b"\1"),
    (Compact(Q, 2, [(5, 1), (9, 0)]), None, Kind.COMPACT, (2, 0, 0),
     bytes(32) + b"\xff" * 8 + bytes(16) + (5).to_bytes(8, "big") + b"\1"
     + (9).to_bytes(8, "big") + b"\0"),
    (Compact(Q, 2, [], Compaction(1, 2, 3, 4, 5, 6, 7)), None, Kind.COMPACT, (2, 1, 0),
     b"".join(n.to_bytes(8, "big") for n in range(1, 8))),
    (AssignPartitions(Q, "q", 3, 6, 9), None, Kind.ASSIGN_PARTITIONS, (0, 6, 9),
     b'{"name":"q","partitions":3}'),
    (ExpireQueue(Q, 6, 9), None, Kind.EXPIRE_QUEUE, (0, 6, 9), b""),
    (QueueReady(Q, 6), None, Kind.QUEUE_READY, (0, 6, 0), b""),
    (QueueReady(Q, 6, refused=True), None, Kind.QUEUE_READY, (0, 6, 0), b"\1"),
    (DropTombstone(Q), None, Kind.DROP_TOMBSTONE, (0, 0, 0), b""),
    (AllocateProducerId(), None, Kind.PRODUCER_ID, (0, 0, 0), b""),
    (Claim(), None, Kind.CLAIM, (0, 0, 0), b""),
    (Foreign(), None, Kind.FOREIGN, (0, 0, 0), b""),
    (ConfigureGroup("g", {"a": "1"}, ["b"], False), None, Kind.CONFIGURE_GROUP, (0, 0, 0),
     b'{"group":"g","set":{"a":"1"},"drop":["b"],"all":false}'),
    (Secure({"Aa": {"v": 1}, "Ab": None}), None, Kind.SECURE, (0, 0, 0),
     b'{"changes":{"Aa":{"v":1},"Ab":null}}'),
    (ChangeJob("j", 7, {"do": "delete"}), None, Kind.CHANGE_JOB, (0, 7, 0),
     b'{"name":"j","value":{"do":"delete"}}'),
    (ChangeJob("j", -1, None), None, Kind.CHANGE_JOB, (0, -1, 0), b'{"name":"j","value":null}'),
    (DeleteGroup("g"), None, Kind.DELETE_GROUP, (0, 0, 0), b'{"group":"g"}'),
    (COMMIT, lambda: COMMIT.envelope(1), Kind.COMMIT, (0, 0, 9),
     b'{"group":"g","member":"m","epoch":3,"offsets":[["' + ID.encode()
     + b'",1,5,-1,"meta",true]]}'),
    (COMMIT, lambda: COMMIT.envelope(2), Kind.COMMIT, (0, 0, 9),
     b"\1\0\1g\0\1m\0\0\0\3\0\0\0\1" + BINARY_ID
     + b"\0\0\0\1\0\0\0\0\0\0\0\5\xff\xff\xff\xff\1\0\0\0\4meta"),
    (DeleteOffsets("g", [(Q, 1)]), lambda: DeleteOffsets("g", [(Q, 1)]).envelope(1),
     Kind.DELETE_OFFSETS, (0, 0, 0), b'{"group":"g","partitions":[["' + ID.encode() + b'",1]]}'),
    (DeleteOffsets("g", [(Q, 1)]), lambda: DeleteOffsets("g", [(Q, 1)]).envelope(2),
     Kind.DELETE_OFFSETS, (0, 0, 0), b"\1\0\1g\0\0\0\1" + BINARY_ID + b"\0\0\0\1"),
    (ExpireOffsets("g", 5, True, [(Q, 1, 7)], 8),
     lambda: ExpireOffsets("g", 5, True, [(Q, 1, 7)], 8).envelope(1), Kind.EXPIRE, (0, 8, 0),
     b'{"group":"g","after":5,"nothing_left":true,"offsets":[["' + ID.encode() + b'",1,7]]}'),
    (ExpireOffsets("g", 5, True, [(Q, 1, 7)], 8),
     lambda: ExpireOffsets("g", 5, True, [(Q, 1, 7)], 8).envelope(2), Kind.EXPIRE, (0, 8, 0),
     b"\1\0\1g" + (5).to_bytes(8, "big") + b"\1\0\0\0\1" + BINARY_ID + b"\0\0\0\1"
     + (7).to_bytes(8, "big")),
    (None, lambda: change(1), Kind.GROUP, (0, 0, 9),
     b'{"group":"g","after":5,"kind":"consumer","members":1,"values":{"epoch":3},"rows":{"m":'
     b'{"epoch":3,"protocols":[["range","bWV0YQ=="]],"assigned":"YQ==","target":"dA==",'
     b'"client_id":"c"},"n":null}}'),
    (None, lambda: change(2), Kind.GROUP, (0, 0, 9),
     b'\1\0\0\0b{"group":"g","after":5,"kind":"consumer","members":1,"values":{"epoch":3},"rows":'
     b'{"m":106,"n":-1}}\0\0\0\0\0\0\0\3\1\0\0\0W{"epoch":3,"protocols":[["range",4]],'
     b'"client_id":"c","bytes":{"assigned":1,"target":1}}metaat'),
    (InitProducer("t", 5, 7, 3, 9), None, Kind.INIT_PRODUCER, (0, 0, 9),
     b"\1\0\0\0\5" + (7).to_bytes(8, "big") + b"\0\3t"),
    (InitProducer("t", 5, -1, -1, 9), None, Kind.INIT_PRODUCER, (0, 0, 9),
     b"\1\0\0\0\5" + b"\xff" * 10 + b"t"),
    (Enlist("t", 7, 3, 2, PARTICIPANTS, 9), None, Kind.ENLIST, (0, 0, 9),
     b"\1" + (7).to_bytes(8, "big") + b"\0\3\2\0\1t\0\0\0\2\0\x15\0" + BINARY_ID
     + b"\0\0\0\1\0\0\0\3\0\2\1g"),
    (Begin(7, 3, 2, 6, TAG, [(Q, 1)], ["g"], 9), None, Kind.BEGIN, (0, 0, 9),
     b"\1" + (7).to_bytes(8, "big") + b"\0\3\2" + (6).to_bytes(8, "big") + TAG
     + b"\0\0\0\1\0\0\0\1" + BINARY_ID + b"\0\0\0\1\0\1g"),
    (End("t", 7, 3, 2, True, 6, 9), None, Kind.END, (0, 0, 9),
     b"\1" + (7).to_bytes(8, "big") + b"\0\3\2\1" + (6).to_bytes(8, "big") + b"t"),
    (End("t", 7, 3, 1, False, -1, 9, EndCause.TIMEOUT), None, Kind.END, (0, 0, 9),
     b"\1" + (7).to_bytes(8, "big") + b"\0\3\1\2" + b"\xff" * 8 + b"t"),
    (Marker(CONTROL, 7, 3, 6, True, [(Q, 1)], ["g"], 9), None, Kind.MARKER, (0, 1, 9),
     CONTROL + b"\1" + (7).to_bytes(8, "big") + b"\0\3" + (6).to_bytes(8, "big")
     + b"\1\0\0\0\1\0\0\0\1" + BINARY_ID + b"\0\0\0\1\0\1g"),
    (Complete("t", 6, 9), None, Kind.COMPLETE, (0, 6, 9), b"\1t"),
    (COMMIT._replace(ordered=True), lambda: COMMIT.envelope(8), Kind.COMMIT, (0, 0, 9),
     b"\2\0\1g\0\1m\0\0\0\3\0\0\0\1" + BINARY_ID
     + b"\0\0\0\1\0\0\0\0\0\0\0\5\xff\xff\xff\xff\1\0\0\0\4meta"),
    (TRANSACTION_COMMIT._replace(ordered=True), lambda: TRANSACTION_COMMIT.envelope(8),
     Kind.TRANSACTION_COMMIT, (0, -1, 9),
     b"\2" + (7).to_bytes(8, "big") + b"\0\4\0\0\0\3\0\0\0\1\0\1g\0\1m" + BINARY_ID
     + b"\0\0\0\1\0\0\0\0\0\0\0\5\xff\xff\xff\xff\0\0\0\0\4meta"),
    (TRANSACTION_COMMIT, lambda: TRANSACTION_COMMIT.envelope(7),
     Kind.TRANSACTION_COMMIT, (0, -1, 9),
     b"\1" + (7).to_bytes(8, "big") + b"\0\4\0\0\0\3\0\0\0\1\0\1g\0\1m" + BINARY_ID
     + b"\0\0\0\1\0\0\0\0\0\0\0\5\xff\xff\xff\xff\0\0\0\0\4meta"),
    (ExpireTransaction("t", -1, 9), None, Kind.EXPIRE_TRANSACTION, (0, -1, 9), b"\1t"),
    (Restored(9), None, Kind.RESTORED, (0, 0, 9), b""),
    (ExpireTransaction("", 7, 9), None, Kind.EXPIRE_TRANSACTION, (0, 7, 9), b"\1"),
    (ForgetProducers((Q, 2), [(7, 9), (8, 0)]), None, Kind.FORGET_PRODUCERS, (2, 0, 0),
     b"\1" + b"".join(n.to_bytes(8, "big") for n in (7, 9, 8, 0))),
    *share_cases.WRITTEN,
    *route_cases.WRITTEN,
    *delay_cases.WRITTEN,
]  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case[2].name)
def test_bytes_are_those_that_releases_wrote_and_are_read_again(case: Any) -> None:
    command, envelope_of, kind, (partition, number, time_ms), body = case
    envelope = command.envelope() if envelope_of is None else envelope_of()
    assert envelope.kind == kind
    assert (envelope.partition, envelope.number, envelope.time_ms) == (partition, number, time_ms)
    assert envelope.body == body
    read = cast(Any, COMMANDS[kind]).decode(decode(envelope.head() + envelope.body))
    if command is None:
        assert read[:5] == ("g", 5, "consumer", 1, {"epoch": 3})
        assert read.rows.keys() == {"m", "n"}
    else:
        assert read == command


def test_a_marker_begins_with_a_control_batch() -> None:
    assert control_batch(7, 4, commit=True, time_ms=9) == CONTROL


def test_every_kind_has_a_class_traits_a_form_and_a_place_in_the_fold() -> None:
    batches = {kind for kind, traits in TRAITS.items() if traits.carries_batch}
    assert batches == {Kind.APPEND, Kind.APPEND_IF, Kind.COPY, Kind.REPLACE}
    assert set(COMMANDS) == set(TRAITS) == set(Kind) == set(ALL)
    assert set(Kind) == {case[2] for case in WRITTEN} | batches
    assert set(MemoryShard().fold._by_kind) == set(Kind)


def test_a_class_without_traits_or_with_anothers_kind_is_refused() -> None:
    with pytest.raises(TypeError):
        of_kind(Kind.TRIM, level=OLDEST)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="level"):
        of_kind(Kind.TRIM, DiskUse.ALWAYS)  # type: ignore[call-arg]
    with pytest.raises(AssertionError, match="TRIM has two classes"):
        of_kind(Kind.TRIM, DiskUse.ALWAYS, level=OLDEST)(Trim)


def test_deletions_are_accepted_on_a_full_disk() -> None:
    always = {kind.name for kind, traits in TRAITS.items() if traits.disk == DiskUse.ALWAYS}
    assert always == {
        "DELETE", "TRIM", "DELETE_OFFSETS", "EXPIRE", "DELETE_GROUP", "DROP_TOMBSTONE",
        "CLAIM", "ASSIGN_PARTITIONS", "QUEUE_READY", "COMPACT", "END", "MARKER", "COMPLETE",
        "EXPIRE_TRANSACTION", "SHARE_LOOK", "AIM_FORWARD", "SETTLE_FORWARD",
        "FORGET_LANDED", "FORGET_PRODUCERS", "RESTORED", "SECURE", "FREE_LANES", "EXPIRE_QUEUE",
        "CHANGE_JOB",
    }  # fmt: skip
    modest = {kind.name for kind, traits in TRAITS.items() if traits.disk == DiskUse.MODEST}
    assert modest == {
        "COMMIT", "GROUP", "CONFIGURE", "CONFIGURE_GROUP", "COPY", "REPLACE", "SHARE", "SHARE_SET",
        "SHARE_QUEUES", "TRANSACTION_COMMIT", "ROUTE", "CUT", "DUE",
    }  # fmt: skip


def story() -> list[Envelope]:
    """Return a log of one shard of two in which each kind does all that it can do."""

    def append(number: int, producer: int = -1, sequence: int = -1, time_ms: int = 0) -> Envelope:
        epoch = 0 if producer >= 0 else -1
        body = batch(b"%d" % number, producer_id=producer, epoch=epoch, sequence=sequence)
        return Envelope(Kind.APPEND, Q, 0, time_ms=time_ms, body=body)

    def copy(kind: Kind = Kind.COPY, generations: int = 0) -> Envelope:
        body = batch(b"0", producer_id=1, epoch=0, sequence=0)
        head = COPIED.pack(1, 61 + len(body), read_header(body).max_timestamp)
        return Envelope(kind, Q, 0, number=0, time_ms=generations, body=head + body)

    def group(after: int, members: int, rows: Any) -> Envelope:
        encoding = ChangeGroup.encode("g", after, "consumer", members, {}, rows, level=2, time_ms=1)
        return at_once(encoding)

    log = [Claim().envelope(), CreateQueue(Q, "q", 3, {}).envelope()]
    log += [append(n, producer=n, sequence=0) for n in range(1, 8)]
    log += [append(1, producer=1, sequence=0)]  # a duplicate
    log += [copy(), copy(Kind.REPLACE, 0 << 8 | 1), copy(Kind.REPLACE, 0 << 8 | 1), copy()]
    log += [Compact(Q, 0, [(0, 1)], Compaction(1, 2, 3, 4, 5, 6, 7)).envelope()]
    log += [QueueReady(Q, 1).envelope(), GrowQueue(Q, 5).envelope()]
    log += [ConfigureQueue(Q, {}, [], True).envelope(), Trim(Q, 0, 2).envelope()]
    ready = len(log)
    log += [QueueReady(Q, ready - 2).envelope(), AllocateProducerId().envelope()]
    log += [CommitOffsets("g", "", -1, [OffsetCommit(Q, 0, 1, -1, "", False)], 1).envelope(2)]
    log += [DeleteOffsets("g", [(Q, 0)]).envelope(2)]
    log += [CommitOffsets("h", "", -1, [OffsetCommit(Q, 0, 1, -1, "", False)], 1).envelope(2)]
    log += [ExpireOffsets("h", len(log) - 1, True, [(Q, 0, 1)], 8).envelope(2)]
    log += [CommitOffsets("g", "", -1, [OffsetCommit(Q, 0, 1, -1, "", False)], 1).envelope(2)]
    version = next(i for i, e in enumerate(log) if e.kind == Kind.COMMIT)
    log += [group(version, 1, {"m": ROW})]
    log += [group(len(log) - 1, 0, {"m": None}), DeleteGroup("g").envelope()]
    log += [ConfigureGroup("g", {"a": "1"}, []).envelope()]
    log += [ChangeJob("j", -1, {}).envelope(), ChangeJob("j", len(log), {"after": "q"}).envelope()]
    log += [ChangeJob("k", -1, {}).envelope(), ChangeJob("k", len(log), None).envelope()]
    log += [Secure({"Aa": {}, "Ub": {"v": 1}}).envelope(), Secure({"Aa": None}).envelope()]
    log += [append(8, producer=8, sequence=0, time_ms=5), append(9, producer=9, sequence=0)]
    log += [Envelope(Kind.APPEND_IF, Q, 0, body=AppendIf.body(batch(b"if"), n)) for n in (9, 0)]
    log += [ForgetProducers((Q, 0), [(4, 5), (5, 5)]).envelope()]
    idle = QueueId(b"i" * 16)
    log += [CreateQueue(idle, "idle", 1, {"kproxy.expire.idle.ms": "60000"}).envelope()]
    log += [ExpireQueue(idle, end, 100_000).envelope() for end in (1, 0, 0)]
    log += [AssignPartitions(OTHER, "other", 4, 3, 1).envelope()]
    log += [AssignPartitions(OTHER, "other", 0, 4, 1).envelope()]
    log += transactions(len(log))
    log += share_cases.story(
        len(log), QueueId(b"s" * 16),
        lambda name: at_once(
            ChangeGroup.encode(name, -1, "share", 0, {}, {}, level=2, time_ms=1)
        ),
    )  # fmt: skip
    log += route_cases.story(len(log))
    log += delay_cases.story()
    log += [Restored(9).envelope()]
    log += [DropTombstone(OTHER).envelope(), DeleteQueue(Q).envelope(), Foreign().envelope()]
    return log


def transactions(start: int) -> list[Envelope]:
    """Return a log's next envelopes, from this log offset on."""
    producer_id, number, foreign = 2 * start, start + 1, 1001

    def append(producer_id: int) -> Envelope:
        body = batch(b"v", producer_id=producer_id, epoch=0, sequence=0, attributes=0x10)
        return Envelope(Kind.APPEND, Q, 0, body=body)

    def marker(producer_id: int, number: int, *, commit: bool) -> Envelope:
        made = control_batch(producer_id, 1, commit=commit, time_ms=4)
        keys = [(Q, 0), (Q, 2)]
        return Marker(made, producer_id, 0, number, commit, keys, ["tg"], 4).envelope()

    def offset(producer_id: int) -> Envelope:
        asked = OffsetCommit(Q, 0, 1, -1, "", False)
        return TransactionCommit("tg", "", -1, producer_id, 0, [asked], 3).envelope(8)

    taking = [Participant(0, (Q, 0)), Participant(0, group="tg"), Participant(1, (Q, 1))]
    log = [InitProducer("t", 100, -1, -1, 1).envelope()]
    log += [Enlist("t", producer_id, 0, 2, taking, 2).envelope()]
    log += [append(producer_id), offset(producer_id)]
    log += [End("t", producer_id, 0, 2, False, number, 4).envelope()]
    log += [marker(producer_id, number, commit=False), Complete("t", number, 5).envelope()]
    log += [Begin(foreign, 0, 1, 9, tag_of("other"), [(Q, 0)], ["tg"], 6).envelope()]
    log += [append(foreign), offset(foreign), marker(foreign, 9, commit=True)]
    log += [ExpireTransaction("t", -1, 5).envelope(), ExpireTransaction("", foreign, 4).envelope()]
    return log


def test_a_kind_changes_the_published_rows_that_its_traits_name_and_no_others() -> None:
    changed: dict[int, set[RowKind]] = {kind: set() for kind in Kind}
    shard = MemoryShard(0, 2, shared=True)
    log = story()
    assert {Kind(envelope.kind) for envelope in log} == set(Kind), "the story lacks a kind"
    for envelope in log:
        before = dict(shard.kv.rows)
        shard.apply(envelope)
        for key in before.keys() | shard.kv.rows.keys():
            if before.get(key) != shard.kv.rows.get(key) and key[0] in PUBLISHED_BYTES:
                changed[envelope.kind].add(RowKind(key[:1]))
    for kind, traits in TRAITS.items():
        assert changed[kind] <= traits.publishes, kind.name
    seen: set[RowKind] = set().union(*changed.values())
    published = {kind for kind in RowKind if kind.is_published}
    assert seen == published - {RowKind.WRITER}, "the story is too short"  # nobody numbers it


@pytest.mark.parametrize(
    ("envelope", "least"),
    [
        (Envelope(Kind.APPEND, Q, body=batch(b"v" * 1000)), 1),
        (CreateQueue(Q, "q", 8000, {}).envelope(), 2000),
        (GrowQueue(Q, 8000).envelope(), 2000),
        (DeleteQueue(Q).envelope(), TURN),
        (AssignPartitions(Q, "q", 0, 1, 1).envelope(), TURN),
        (AssignPartitions(Q, "q", 8000, 1, 1).envelope(), 2000),
        (CommitOffsets("g", "", -1, COMMIT.offsets * 1000).envelope(2), 500),
        (Begin(7, 3, 2, 6, TAG, [(Q, 1)] * 500, [], 9).envelope(), 500),
        (Marker(CONTROL, 7, 3, 6, True, [(Q, 1)] * 500, [], 9).envelope(), 1000),
        (Marker(CONTROL, 7, 3, 6, True, [], ["g"], 9).envelope(), 400),
        (route_cases.WRITTEN[0][0].envelope(), TURN),
        (route_cases.ship((Q, 0), Q, 1, [("a", b"")] * 400), 800),
        (ForgetProducers((Q, 0), [(7, 9)] * 500).envelope(), 500),
        (delay_cases.later((Q, 0), *[b""] * 400), 400),
        (delay_cases.due((Q, 0), [0] * 200, [b""] * 200, time_ms=9), 800),
    ],
)
def test_weights(envelope: Envelope, least: int) -> None:
    assert weight(envelope) >= least
    assert weight(envelope) < 3 * max(1, least)


def test_traits_are_frozen() -> None:
    with pytest.raises(AttributeError):
        cast(Any, TRAITS[Kind.TRIM]).disk = DiskUse.ORDINARY
    assert isinstance(TRAITS[Kind.TRIM], Traits)
