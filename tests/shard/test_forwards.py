"""The leftovers of FORWARD in a shard: read as they lie, copied forward, swept, found again, and
torn.
"""

from itertools import count
from pathlib import Path

import pytest

from kproxy.protocol.batch import LOG_OVERHEAD_BYTES, read_header
from kproxy.shard.copier import Copier
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import COPY_BYTES, Envelope, Kind
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.shares import AimForward, Forward
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import Position
from kproxy.virtual.types import PartitionKey, QueueId
from tests.commands import command
from tests.shard.test_damage import _forged, forged_frames_prove_nothing
from tests.shard.test_shard import QUEUES, config, create, put, read, running
from tests.shard.test_transactions import Copied, keys_of
from tests.wire import batch

TARGET: PartitionKey = (QUEUES[0], 0)
SOURCE: PartitionKey = (QueueId(b"s" * 16), 3)
GROUP = "a group with a long name"
numbers = count()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproxy.store.files.sync_data", lambda fd: None)


def letter(*values: bytes, target: PartitionKey = TARGET) -> Envelope:
    """Return the next of a stream."""
    number = next(numbers)
    at = Position(number, 0, number)
    return Forward(target, 1, SOURCE, GROUP, at, at, batch(*values), 5).envelope()


async def send(shard: Shard, *sent: Envelope) -> list[int]:
    outcomes = await shard.append(sent).wait()
    assert not any(outcome.code for outcome in outcomes)
    return [outcome.number for outcome in outcomes]


async def test_a_reader_gets_the_batch_and_nothing_of_what_follows(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1) as shard:
        twice = letter(b"1", b"2")
        assert await send(shard, twice, twice) == [0, -1]
        assert await put(shard, QUEUES[0], b"3") == 2
        assert await send(shard, letter(b"4")) == [3]
        before = read(shard, QUEUES[0])
        assert before == {0: batch(b"1", b"2"), 2: batch(b"3"), 3: batch(b"4")}
        live = sum(len(data) + COPY_BYTES for data in before.values())
        assert shard.state.live_bytes(0) == live
    again = open_local(tmp_path, config())
    assert read(again, QUEUES[0]) == before
    assert again.state.live_bytes(0) == live
    again.close()


async def test_it_is_copied_forward_without_what_follows_its_batch(tmp_path: Path) -> None:
    async with running(tmp_path, sync="never") as shard:
        for queue in QUEUES[:3]:
            await create(shard, queue)
        for number in range(6):
            await send(shard, *[letter(b"%d" % number, target=(q, 0)) for q in QUEUES[:3]])
        await shard.log.roll()
        await send(shard, Trim(*TARGET, 4, 9).envelope(), command(Kind.DELETE, QUEUES[2]))
        before = {queue: read(shard, queue) for queue in QUEUES[:2]}
        await Housekeeper(shard, config())._sweep()
        copied = Copied(shard)
        await Copier(shard, 0).run()
        assert sorted(copied.of) == [(QUEUES[0], 0)] * 2 + [(QUEUES[1], 0)] * 6
        assert shard.state.live_bytes(0) == 0
        await Housekeeper(shard, config()).flush()
        shard.segments.drop(0)
        assert {queue: read(shard, queue) for queue in QUEUES[:2]} == before
    again = open_local(tmp_path, config())
    assert {queue: read(again, queue) for queue in QUEUES[:2]} == before
    for data in before[QUEUES[0]].values():
        assert read_header(data).length + LOG_OVERHEAD_BYTES == len(data)
    again.close()


async def test_with_a_queue_goes_what_it_has_taken_and_where_it_sent_its_own(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as shard:
        for queue in QUEUES[:2]:
            await create(shard, queue)
        for queue in QUEUES[:2]:
            await send(shard, letter(b"v", target=(queue, 0)))
            await send(shard, AimForward((queue, 0), GROUP, SOURCE).envelope())
        await send(shard, command(Kind.DELETE, QUEUES[0]))
        while await Housekeeper(shard, config())._sweep():
            pass
        for kind in (RowKind.FORWARDED, RowKind.FORWARD_TARGET):
            (key,) = keys_of(shard, kind)
            assert QUEUES[1] in key
        assert shard.state.live_bytes(0) == len(batch(b"v")) + COPY_BYTES


async def test_frames_that_clients_forge_inside_dead_letters_prove_nothing(
    tmp_path: Path, fast: None
) -> None:
    forged = letter(b"".join(_forged(n, n) for n in range(2, 50)))
    await forged_frames_prove_nothing(tmp_path, forged)
