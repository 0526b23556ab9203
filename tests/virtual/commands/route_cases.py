"""Commands of routes: the bytes of each, and a log in which each does all that it can do."""

from collections.abc import Callable, Sequence
from typing import Any

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import (
    AssignPartitions,
    ConfigureQueue,
    CreateQueue,
    DeleteQueue,
    GrowQueue,
    QueueReady,
)
from kproxy.virtual.commands.routes import Batches, Cut, DefineRoute, ForgetLanded, Ship, Target
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.folds.route_definitions import (
    FILTER,
    FROM,
    FROM_START,
    TO,
    UNROUTABLE,
    Told,
    to_tell,
)
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.types import PartitionKey, QueueId
from tests.wire import batch

Q, OTHER = QueueId(bytes(range(16))), QueueId(bytes(range(16, 32)))
KEY: PartitionKey = (Q, 1)
_Q, _OTHER = Q + b"\0\0\0\1", OTHER + b"\0\0\0\2"
ONE, TWO = batch(b"1", times=(5,)), batch(b"22", b"", times=(6, 7))
CONFIGS = {"retention.ms": "5"}
ROUTES = to_tell([Told(OTHER, b'{"name":"o"}', True)])


def ship(
    source: PartitionKey, definer: QueueId, through: int, batches: Sequence[tuple[str, bytes]],
    part: int = 0, *, only: bool = False, salt: int = 0, time_ms: int = 1, look_ms: int = 1,
    configs: dict[str, str] | None = None, after: int = -1,
) -> Envelope:  # fmt: skip
    """Return a SHIP; nothing depends on unnamed fields."""
    return Ship.envelope(
        source, definer, through, part, Batches.of(batches), only=only, salt=salt, time_ms=time_ms,
        look_ms=look_ms, configs=configs or {}, after=after,
    )  # fmt: skip


_AT = 86  # the place of batches in the body of SHIP
SHIP = Ship(
    KEY, OTHER, 1 << 40, 3, [Target("a", _AT, len(ONE)), Target("b.c", _AT + len(ONE), len(TWO))],
    False, 1 << 60, 9, -7, CONFIGS,
)  # fmt: skip
ONLY = Ship(KEY, OTHER, 2, 0, [Target("a", 58, len(ONE))], True, 1, 9, 8, {})
LATE = Ship(KEY, OTHER, 7, 0, [Target("a", 66, len(ONE))], True, 1, 9, 8, {}, 3)
WRITTEN: list[tuple[Any, Callable[[], Envelope] | None, Kind, tuple[int, int, int], bytes]] = [
    # as in test_commands
    (DefineRoute(Q, "s", '{"name":"o"}', True, 6), None, Kind.ROUTE, (0, 6, 0),
     b'{"source":"s","spec":"{\\"name\\":\\"o\\"}","from_start":true}'),
    (Cut(KEY, OTHER, 7, 1 << 40, 64, 3), None, Kind.CUT, (1, 7, 0),
     b"\1" + (1 << 40).to_bytes(8, "big") + b"\0\x40" b"\0\0\0\3" + OTHER),
    (SHIP,
     lambda: ship(KEY, OTHER, 1 << 40, [("a", ONE), ("b.c", TWO)], 3, salt=1 << 60, time_ms=9,
                  look_ms=-7, configs=CONFIGS),
     Kind.SHIP, (1, 2, 9),
     (1 << 40).to_bytes(8, "big") + (_AT - 12 + len(ONE + TWO)).to_bytes(4, "big") + b"\1" + OTHER
     + b"\0\3\0" + (1 << 60).to_bytes(8, "big") + b"\xff" * 7 + b"\xf9" + b"\0\x14" b"\0\2"
     + b'{"retention.ms":"5"}' + b"\1" + len(ONE).to_bytes(4, "big")
     + b"\3" + len(TWO).to_bytes(4, "big") + b"ab.c" + ONE + TWO),
    (ONLY, lambda: ship(KEY, OTHER, 2, [("a", ONE)], only=True, salt=1, time_ms=9, look_ms=8),
     Kind.SHIP, (1, 1, 9),
     (2).to_bytes(8, "big") + (46 + len(ONE)).to_bytes(4, "big") + b"\1" + OTHER
     + b"\0\0\1" + (1).to_bytes(8, "big") + (8).to_bytes(8, "big") + b"\0\0\0\1"
     + b"\1" + len(ONE).to_bytes(4, "big") + b"a" + ONE),
    (LATE,
     lambda: ship(KEY, OTHER, 7, [("a", ONE)], only=True, salt=1, time_ms=9, look_ms=8, after=3),
     Kind.SHIP, (1, 1, 9),
     (7).to_bytes(8, "big") + (54 + len(ONE)).to_bytes(4, "big") + b"\2" + OTHER
     + b"\0\0\1" + (1).to_bytes(8, "big") + (8).to_bytes(8, "big") + b"\0\0\0\1"
     + (3).to_bytes(8, "big") + b"\1" + len(ONE).to_bytes(4, "big") + b"a" + ONE),
    (ForgetLanded([(OTHER, KEY), (Q, (OTHER, 2))], 9), None, Kind.FORGET_LANDED, (0, 0, 9),
     OTHER + _Q + Q + _OTHER),
    (ForgetLanded([], 9, [b"Mab", b"Mc"]), None, Kind.FORGET_LANDED, (0, 2, 9),
     b"\0\3Mab\0\2Mc"),
    (AssignPartitions(Q, "q", 3, 6, 9, ROUTES), None, Kind.ASSIGN_PARTITIONS, (0, 6, 9),
     b'{"name":"q","partitions":3,"routes":[["' + OTHER.hex().encode()
     + b'","{\\"name\\":\\"o\\"}",true]]}'),
]  # fmt: skip


def names_of(shard: int, shards: int = 2, prefix: str = "n") -> list[str]:
    """Return ten names of queues whose home is this shard."""
    return [n for n in (f"{prefix}{i}" for i in range(200)) if shard_of(n, shards) == shard][:10]


def story(start: int) -> list[Envelope]:
    """Return a log's next envelopes in shard 0 of 2, from this log offset on."""
    entrance, filtered, far, source, late = (QueueId(bytes([200 + i]) * 16) for i in range(5))
    mine, others = names_of(0, prefix="story"), names_of(1, prefix="story")

    def append(queue: QueueId, index: int = 0) -> Envelope:
        return Envelope(Kind.APPEND, queue, index, body=ONE)

    log = [Claim().envelope()]
    log += [DefineRoute(OTHER, mine[1], '{"name":"x"}', True, 3).envelope()]
    log += [CreateQueue(entrance, mine[0], 3, {TO: "d-{key}", UNROUTABLE: "u"}).envelope()]
    log += [QueueReady(entrance, start + len(log) - 1).envelope()]
    log += [CreateQueue(filtered, mine[2], 1, {FROM: others[0]}).envelope()]
    log += [ConfigureQueue(filtered, {FROM: mine[1], FROM_START: "true"}, [], False).envelope()]
    log += [QueueReady(filtered, start + len(log) - 1).envelope()]
    log += [DefineRoute(filtered, mine[0], '{"name":"y"}', True, 3).envelope()]
    log += [append(entrance), append(entrance)]
    log += [Cut((entrance, 0), entrance, 0, 2, 1).envelope()]
    made = ship((entrance, 0), entrance, 2, [(mine[1], ONE), (mine[3], TWO)], configs=CONFIGS)
    log += [made, made]  # the second one is void
    log += [GrowQueue(entrance, 5).envelope()]
    log += [ConfigureQueue(entrance, {}, [TO], False).envelope(), append(entrance)]
    log += [Cut((entrance, 0), entrance, 2, 2, 1, 2).envelope()]  # the last one: it ends there
    log += [ship((source, 1), filtered, 9, [(mine[2], ONE)], only=True)]
    log += [ship((source, 1), filtered, 10, [(mine[3], ONE)], only=True)]  # another queue
    log += [ForgetLanded([(filtered, (source, 1)), (far, KEY)], 5).envelope()]
    log += [AssignPartitions(late, others[1], 4, 3, 1, ROUTES).envelope(), append(late, 1)]
    log += [ConfigureQueue(entrance, {FILTER: "key:a", TO: "e-{key}"}, [], False).envelope()]
    log += [AssignPartitions(late, others[1], 6, 5, 1).envelope()]
    log += [Cut((late, 1), OTHER, 0, 1, 1).envelope()]
    log += [Cut((late, 1), OTHER, 1, 1, 1).envelope(), Cut((late, 1), OTHER, 1, 1, 1).envelope()]
    log += [DefineRoute(filtered, mine[0], "", False, 30).envelope()]
    log += [DeleteQueue(filtered).envelope(), DeleteQueue(entrance).envelope()]
    return log
