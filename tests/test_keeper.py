"""Offsets of a queue that is gone: forgotten by the log's commands, and by nothing else."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from kproxy.errors import Code, KafkaError
from kproxy.keeper import Keeper, sweep_commits
from kproxy.shard import Shard, open_local
from kproxy.virtual import rows
from kproxy.virtual.bodies import decode_forget
from kproxy.virtual.envelope import Envelope, Kind, command
from tests.log.test_shard import QUEUES, config, create, run, running

GROUPS = 1200


async def commit(shard: Shard, group: str, *partitions: int) -> None:
    offsets = [[QUEUES[0].hex(), index, 5, -1, "m", False] for index in partitions]
    values = {"group": group, "offsets": offsets}
    await shard.append([command(Kind.COMMIT, values=values)]).wait()


def left(shard: Shard) -> list[bytes]:
    return [key for key, _ in shard.kv.scan(b"", b"\xff") if key[:1] in (b"o", b"r", b"x")]


class Appended:
    """What goes to a shard's log."""

    def __init__(self, shard: Shard) -> None:
        self.slices: list[list[Envelope]] = []
        append = shard.append

        def noted(envelopes: Any) -> Any:
            self.slices.append(list(envelopes))
            return append(envelopes)

        shard.append = noted  # type: ignore[method-assign]


def test_offsets_of_a_deleted_queue_are_forgotten_through_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, sync="never") as shard:
            await create(shard, QUEUES[0], 3)
            for number in range(GROUPS):
                await commit(shard, f"g{number}", 0, 2)
            await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
            appended = Appended(shard)
            await Keeper(shard, config())._sweep()
            assert left(shard) == []
            for slice_ in appended.slices:
                assert {envelope.kind for envelope in slice_} == {Kind.FORGET}
                assert sum(len(decode_forget(one.body).partitions) for one in slice_) <= 500
        # The rows are what the log says, and nothing else.
        shutil.copytree(tmp_path / "log", tmp_path / "again" / "log")
        again = open_local(tmp_path / "again", config())
        assert [key for key in left(again) if key[:1] != b"x"] == []
        again.close()

    run(test)


def test_the_note_stays_until_all_are_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, sync="never") as shard:
            await create(shard, QUEUES[0])
            await commit(shard, "g", 0)
            await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
            keeper = Keeper(shard, config())
            append = shard.append

            def refuse(envelopes: Any) -> Any:
                raise KafkaError(Code.KAFKA_STORAGE_ERROR, "no")

            shard.append = refuse  # type: ignore[method-assign]
            assert not await keeper._sweep()
            assert len(left(shard)) == 3
            shard.append = append  # type: ignore[method-assign]
            shard.serving = False
            assert not await keeper._sweep()
            assert len(left(shard)) == 3
            shard.serving = True
            assert await keeper._sweep()
            assert left(shard) == []

    run(test)


@pytest.mark.parametrize("serving", [True, False])
def test_only_who_serves_a_shard_sweeps_its_offsets(tmp_path: Path, serving: bool) -> None:
    async def test() -> None:
        async with running(tmp_path, sync="never") as shard:
            await create(shard, QUEUES[0])
            await commit(shard, "g", 0)
            shard.serving = serving
            await sweep_commits(shard, QUEUES[0])
            key = rows.offset_key("g", QUEUES[0], 0)
            assert (shard.kv.get(key) is None) == serving

    run(test)
