"""Seeded: dead letters, each exactly once and in order, whatever happens to owners and messages."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import anyio
import pytest

from kproxy.shard.appends import outcome_of
from kproxy.shares import dead_letter_batches, dead_letter_sender
from kproxy.shares.dead_letter_batches import plan
from kproxy.shares.dead_letter_sender import Sender
from kproxy.shares.dead_letter_stream import Stream
from kproxy.shares.dead_letter_targets import Target
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.shares import DEAD_LETTERS, Forward, SettleForward
from kproxy.virtual.folds.shares import ShareFold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.shares import FORWARDED
from tests.simulation import virtual_time
from tests.simulation.routes.dead_letters import SHARDS, DeadWorld, lived
from tests.simulation.seeds import named, see, seeds

pytestmark = pytest.mark.usefixtures("small_batches")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Make batches of a few records, so that most runs are cut."""
    patch.setattr(dead_letter_sender, "to_thread", virtual_time.Inline)
    patch.setattr(dead_letter_sender, "BATCH_BYTES", 900)
    patch.setattr(dead_letter_sender, "_LOT", 3)
    patch.setattr(dead_letter_sender, "_HELD_MAX", 10)
    patch.setattr(dead_letter_sender, "_SETTLED_MAX", 2)
    patch.setattr(dead_letter_batches, "_READ_BYTES", 400)


def run(seed: int, *, shuffled: bool = False) -> DeadWorld:
    return lived(DeadWorld(seed), seed, shuffled=shuffled)


@seeds(20, long=500)
def test_each_is_sent_once_and_in_order(seeds: range) -> None:
    seen = 0
    for seed in seeds:
        with named(seed):
            world = run(seed, shuffled=seed % 2 == 1)
        seen += sum(map(len, world.owed.values()))
    assert seen > 200


# -- planted mistakes


def _positions_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    forward = ShareFold.forward

    def taken(self: Any, log_offset: int, envelope: Envelope, place: LogLocation) -> Outcome:
        asked = Forward.decode(envelope)
        self._state.put(FORWARDED.key(asked.target, asked.stream, asked.source, asked.group), None)
        return forward(self, log_offset, envelope, place)

    patch.setattr(ShareFold, "forward", taken)


def _only_the_last_position_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    decode = Forward.decode

    class ByLast:
        @staticmethod
        def decode(envelope: Envelope) -> Forward:
            asked = decode(envelope)
            return asked._replace(first=asked.last)

    patch.setattr("kproxy.virtual.folds.shares.Forward", ByLast)


def _settled_before_it_landed(patch: pytest.MonkeyPatch) -> None:
    forward = Sender._forward

    async def at_once(self: Sender, *args: Any) -> Outcome:
        with anyio.move_on_after(0):
            await forward(self, *args)
        return Outcome(number=0)

    patch.setattr(Sender, "_forward", at_once)


def _two_under_way(patch: pytest.MonkeyPatch) -> None:
    """Send the next batch before the last has landed; settle each once it has."""

    async def send(self: Sender, stream: Stream, target: Target) -> bool:
        if not await self._aim(stream, target):
            return False
        planned = plan(self._shard, stream.runs)
        if planned is None:
            return True
        made = await self._made(planned, stream, target)
        count = stream.advance(made.last)
        places = [run.place for run in islice(stream.runs, count)]
        for _ in range(count):
            stream.runs.popleft()
        self._held -= count
        asked = Forward(
            target.key, DEAD_LETTERS, stream.source, stream.group, made.first, made.last, made.batch
        )
        index = shard_of(target.queue.name, SHARDS, target.partition)
        routes: Any = self._shared.routes
        ticket = routes.ask(index, asked.envelope())

        async def settle() -> None:
            if not (await outcome_of(ticket)).code and places:
                self._shard.append([SettleForward(places).envelope()])

        routes.world.tasks.start_soon(settle)
        return True

    patch.setattr(Sender, "_send", send)


def _sent_to_what_is_set_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "_pinned", lambda self, stream: None)


def _doubts_are_forgotten_where_they_wait(patch: pytest.MonkeyPatch) -> None:
    block = Sender._block

    def forgetful(self: Sender, stream: Stream, why: Any) -> None:
        doubt = self._doubt
        block(self, stream, why)
        self._doubt = doubt

    patch.setattr(Sender, "_block", forgetful)


def _a_new_owner_has_no_doubts(patch: pytest.MonkeyPatch) -> None:
    init = Stream.__init__

    def nothing(self: Stream, key: Any, doubt: Any) -> None:
        init(self, key, (-1, -1))

    patch.setattr(Stream, "__init__", nothing)


MISTAKES: list[Callable[[pytest.MonkeyPatch], None]] = [
    _positions_are_not_looked_at, _only_the_last_position_is_looked_at,
    _settled_before_it_landed, _two_under_way, _sent_to_what_is_set_now,
    _a_new_owner_has_no_doubts, _doubts_are_forgotten_where_they_wait,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)
    see(run, range(60))
