"""Mistakes that the simulation sees, and in how many seeds at most."""

from typing import Any

import pytest

from kproxy.owning import aftermath, queues
from kproxy.owning.announcing import Announcer
from kproxy.owning.decisions import Decisions
from kproxy.owning.freshness import Freshness
from kproxy.owning.queues import Gone
from kproxy.shard import Shard
from kproxy.virtual import rows


def tombstones_that_do_not_say_as_of_when(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queues, "_gone", lambda note: Gone(2**62))


def who_catches_up_announces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Decisions, "folded", Decisions.applied)


def a_sweep_beside_the_log(patch: pytest.MonkeyPatch) -> None:
    async def sweep(shard: Any, queue_id: bytes) -> None:
        for key, _ in list(shard.kv.scan(b"r" + queue_id, b"r" + queue_id + b"\xff" * 5)):
            offset_key = rows.offset_key(key[21:].decode(), *rows.partition_of(key))
            shard.commit({key: None, offset_key: None})

    patch.setattr(aftermath, "sweep_commits", sweep)


def a_log_trimmed_to_where_it_is_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "first_live", lambda self: self.applied_through.next_offset)


def landed_before_all_were_told(patch: pytest.MonkeyPatch) -> None:
    async def tell_all(self: Decisions, shard: Any, queue_id: bytes, work: Any) -> bool:
        return True

    patch.setattr(Decisions, "_tell_all", tell_all)


def a_catalogue_that_is_believed_at_once(patch: pytest.MonkeyPatch) -> None:
    async def settle(self: Freshness) -> None:
        pass

    patch.setattr(Freshness, "settle", settle)


def a_rebuild_that_looks_one_way_only(patch: pytest.MonkeyPatch) -> None:
    async def compare_cache(self: Announcer) -> None:
        for shard, _ in self._to_compare.values():
            shard.commit({rows.COMPARE_KEY: None})
        self._to_compare.clear()
        self._comparing = False

    patch.setattr(Announcer, "_compare_cache", compare_cache)


MISTAKES = [
    (tombstones_that_do_not_say_as_of_when, 30),
    (who_catches_up_announces, 10),
    (a_sweep_beside_the_log, 20),
    (a_log_trimmed_to_where_it_is_applied, 10),
    (landed_before_all_were_told, 10),
    (a_catalogue_that_is_believed_at_once, 30),
    pytest.param(a_rebuild_that_looks_one_way_only, 300, marks=pytest.mark.long),
]
