"""Mistakes that the simulation sees, and in how many seeds at most."""

from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import anyio
import pytest

from kproxy.cluster import log_prefix, remote_cleanup, shard_owner
from kproxy.cluster.announcer import Announcer
from kproxy.cluster.catalogue import cache as catalogue_cache
from kproxy.cluster.catalogue.barrier import CatalogueBarrier
from kproxy.cluster.catalogue.cache import Tombstone
from kproxy.cluster.command_router import CommandRouter
from kproxy.cluster.partition_assigner import PartitionAssigner
from kproxy.cluster.publisher import Publisher
from kproxy.cluster.shard_owner import ShardOwner
from kproxy.common.errors import Code
from kproxy.log.shared import SharedLog
from kproxy.shard.shard import Shard
from kproxy.upstream.rows_writer import NotPublished
from kproxy.virtual import producers, state
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.folds.groups import GroupFold
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.kinds import PUBLISHED_BYTES
from kproxy.virtual.rows.producers import BatchMetadata
from kproxy.virtual.snapshot import RowCapture
from kproxy.virtual.state import State
from kproxy.virtual.writers import Writers
from tests.simulation.workers.cluster import SimLink
from tests.simulation.workers.offset_topic import SimRowsWriter

Mistake = Callable[[pytest.MonkeyPatch], None]


def tombstones_that_do_not_say_as_of_when(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(catalogue_cache, "_gone", lambda note: Tombstone(2**62))


def who_catches_up_announces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommandRouter, "folded", CommandRouter.applied)


def a_sweep_beside_the_log(patch: pytest.MonkeyPatch) -> None:
    async def sweep(shard: Any, queue_id: bytes) -> None:
        for key, _ in list(shard.kv.scan(b"r" + queue_id, b"r" + queue_id + b"\xff" * 5)):
            offset_key = offset_rows.offset_key(
                offset_rows.group_of_offset_by_queue(key), *rows.partition_of(key)
            )
            shard.commit({key: None, offset_key: None})

    patch.setattr(remote_cleanup, "sweep_commits", sweep)


def a_log_trimmed_to_where_it_is_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "first_live", lambda self: self.applied_through.next_offset)


def landed_before_all_were_told(patch: pytest.MonkeyPatch) -> None:
    async def tell_all(self: PartitionAssigner, shard: Any, queue_id: bytes, work: Any) -> bool:
        return True

    patch.setattr(PartitionAssigner, "_tell_all", tell_all)


def a_catalogue_that_is_believed_at_once(patch: pytest.MonkeyPatch) -> None:
    async def wait(self: CatalogueBarrier) -> None:
        pass

    patch.setattr(CatalogueBarrier, "wait", wait)


def a_rebuild_that_looks_one_way_only(patch: pytest.MonkeyPatch) -> None:
    async def compare_cache(self: Announcer) -> None:
        for shard, _ in self._to_compare.values():
            shard.commit({rows.COMPARE_KEY: None})
        self._to_compare.clear()
        self._comparing = False

    patch.setattr(Announcer, "_compare_cache", compare_cache)


# -- publishing


def changes_during_a_publication_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    captured, trim = Publisher._captured, Publisher._trim
    taken: dict[Publisher, set[bytes]] = {}

    async def noted(self: Publisher, keys: set[bytes]) -> dict[bytes, bytes | None]:
        taken[self] = set(keys)
        return await captured(self, keys)

    async def forgetting(self: Publisher, trim_to: int) -> None:
        self._shard.commit({rows.unpublished_key(key): None for key in taken[self]})
        await trim(self, trim_to)

    patch.setattr(Publisher, "_captured", noted)
    patch.setattr(Publisher, "_trim", forgetting)


def a_failed_publication_forgets_its_keys(patch: pytest.MonkeyPatch) -> None:
    captured, refused = Publisher._captured, Publisher._refused
    taken: dict[Publisher, set[bytes]] = {}

    async def noted(self: Publisher, keys: set[bytes]) -> dict[bytes, bytes | None]:
        taken[self] = set(keys)
        return await captured(self, keys)

    async def forgetting(self: Publisher, error: NotPublished) -> None:
        assert self._shard.state.unpublished is not None
        self._shard.state.unpublished -= taken[self]
        await refused(self, error)

    patch.setattr(Publisher, "_captured", noted)
    patch.setattr(Publisher, "_refused", forgetting)


def rows_taken_after_they_were_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowCapture, "before_write", lambda self, changes: None)


def a_publisher_that_does_not_catch_up_behind_its_fence(patch: pytest.MonkeyPatch) -> None:
    catch_up = SharedLog.catch_up

    async def to_an_end(self: SharedLog, end: int | None = None) -> None:
        if end is not None:
            await catch_up(self, end)

    patch.setattr(SharedLog, "catch_up", to_an_end)


def a_log_trimmed_before_its_rows_are_seen(patch: pytest.MonkeyPatch) -> None:
    async def rows_settled(self: SimLink, partition: int) -> bool:
        return True

    patch.setattr(SimLink, "rows_settled", rows_settled)


def rows_that_stand_for_more_than_they_are(patch: pytest.MonkeyPatch) -> None:
    write = SimRowsWriter.write

    def ahead(self: SimRowsWriter, changes: Any, as_of: int, stop: Any) -> None:
        write(self, changes, as_of + 1, stop)

    patch.setattr(SimRowsWriter, "write", ahead)


def groups_that_are_not_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "PUBLISHED_BYTES", PUBLISHED_BYTES - set(b"gu"))


def producers_that_are_not_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "PUBLISHED_BYTES", PUBLISHED_BYTES - set(b"k"))


def writers_that_are_not_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "PUBLISHED_BYTES", PUBLISHED_BYTES - set(b"#"))


def what_is_to_publish_is_not_on_disk(patch: pytest.MonkeyPatch) -> None:
    def note(self: State, changes: dict[bytes, bytes | None], noted: set[bytes]) -> None:
        noted.update(key for key in changes if key[0] in PUBLISHED_BYTES)

    patch.setattr(State, "_note_unpublished", note)


# -- answering


def a_closed_shard_answers_success(patch: pytest.MonkeyPatch) -> None:
    _resolved_as(patch, Code.NOT_LEADER_OR_FOLLOWER)


def unknown_fate_answers_success(patch: pytest.MonkeyPatch) -> None:
    _resolved_as(patch, Code.REQUEST_TIMED_OUT)


def _resolved_as(patch: pytest.MonkeyPatch, code: Code) -> None:
    resolve = SharedLog._resolve

    def resolved(self: SharedLog, counter: int, outcome: Outcome) -> None:
        resolve(self, counter, Outcome() if outcome.code == code else outcome)

    patch.setattr(SharedLog, "_resolve", resolved)


def a_deletion_answered_before_it_is_told(patch: pytest.MonkeyPatch) -> None:
    announce = Announcer.announce

    def at_once(self: Announcer, shard: Shard, name: str, then: Any = None, *more: Any) -> None:
        if then is not None:
            then()
        announce(self, shard, name, None, *more)

    patch.setattr(Announcer, "announce", at_once)


def lost_announcements_are_not_said_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Announcer, "say_lost", lambda self: None)


def a_repeated_batch_is_appended_again(patch: pytest.MonkeyPatch) -> None:
    judge = producers.judge

    def forgetful(*asked: Any) -> Any:
        verdict = judge(*asked)
        return None if isinstance(verdict, BatchMetadata) else verdict

    patch.setattr(producers, "judge", forgetful)


def duplicates_that_leave_no_void(patch: pytest.MonkeyPatch) -> None:
    put = State.put

    def but_no_void(self: State, key: bytes, value: bytes | None) -> None:
        if key[:1] != b"v":
            put(self, key, value)

    patch.setattr(State, "put", but_no_void)


def an_envelope_taken_twice_is_applied_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writers, "passed", lambda *asked: False)


# -- holding a shard


def _claims(patch: pytest.MonkeyPatch, may_serve: Callable[[Outcome, ShardOwner], bool]) -> None:
    async def claim_and_serve(self: ShardOwner, shard: Shard) -> None:
        while True:
            self._claimed_by_other = anyio.Event()
            outcome = (await shard.append([Envelope(Kind.CLAIM)]).wait())[0]
            if may_serve(outcome, self):
                self._serve(shard, outcome.number)
                await self._claimed_by_other.wait()
            await anyio.sleep(shard_owner._CLAIM_AGAIN_S)

    patch.setattr(ShardOwner, "_claim_and_serve", claim_and_serve)


def a_claim_of_unknown_fate_serves(patch: pytest.MonkeyPatch) -> None:
    _claims(patch, lambda outcome, self: not self._claimed_by_other.is_set())


def serves_though_another_claimed_meanwhile(patch: pytest.MonkeyPatch) -> None:
    _claims(patch, lambda outcome, self: not outcome.code)


def never_claims_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_owner, "_CLAIM_AGAIN_S", 1e9)


def a_local_copy_that_is_not_held_against_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_prefix, "identity", lambda envelope: ANY)


def who_serves_goes_on_behind_the_claim_of_another(patch: pytest.MonkeyPatch) -> None:
    applied = ShardOwner._applied

    def goes_on(self: ShardOwner, shard: Shard, *more: Any) -> None:
        with pytest.MonkeyPatch.context() as deaf:
            deaf.setattr(self, "_stop_serving", lambda shard: None)
            applied(self, shard, *more)

    patch.setattr(ShardOwner, "_applied", goes_on)


def copies_that_do_not_say_so(patch: pytest.MonkeyPatch) -> None:
    moved = Batch._replace
    patch.setattr(Batch, "_replace", lambda batch, *, copied, **values: moved(batch, **values))


# -- groups


def anyone_commits_to_a_group_of_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupFold, "_member_fault", lambda *asked: Code.NONE)


def rare(mistake: Mistake, seeds: int) -> Any:
    """Leave a mistake that many seeds miss, or that takes long to see, to `-m long`."""
    return pytest.param(mistake, seeds, marks=pytest.mark.long)


MISTAKES = [
    (tombstones_that_do_not_say_as_of_when, 10),
    (who_catches_up_announces, 10),
    (a_sweep_beside_the_log, 20),
    (a_log_trimmed_to_where_it_is_applied, 10),
    (landed_before_all_were_told, 10),
    (a_catalogue_that_is_believed_at_once, 15),
    rare(a_rebuild_that_looks_one_way_only, 300),
    rare(changes_during_a_publication_are_forgotten, 150),
    (a_failed_publication_forgets_its_keys, 60),
    (rows_taken_after_they_were_written, 30),
    (a_publisher_that_does_not_catch_up_behind_its_fence, 75),
    (a_log_trimmed_before_its_rows_are_seen, 10),
    (rows_that_stand_for_more_than_they_are, 10),
    (groups_that_are_not_published, 10),
    (producers_that_are_not_published, 30),
    (writers_that_are_not_published, 10),
    (what_is_to_publish_is_not_on_disk, 10),
    (a_closed_shard_answers_success, 10),
    (unknown_fate_answers_success, 10),
    (a_deletion_answered_before_it_is_told, 15),
    rare(lost_announcements_are_not_said_again, 300),
    (a_repeated_batch_is_appended_again, 20),
    (duplicates_that_leave_no_void, 20),
    (an_envelope_taken_twice_is_applied_twice, 20),
    (a_claim_of_unknown_fate_serves, 30),
    rare(serves_though_another_claimed_meanwhile, 300),
    rare(never_claims_again, 150),
    (a_local_copy_that_is_not_held_against_the_log, 40),
    (who_serves_goes_on_behind_the_claim_of_another, 15),
    (copies_that_do_not_say_so, 15),
    (anyone_commits_to_a_group_of_members, 45),
]
"""The mistakes to see, and in how many seeds at most: three times those that it took, or more."""
