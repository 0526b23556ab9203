"""Seeded: a bulk job touches what it has written down, all of it and once, whoever is killed."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kproxy.server import bulk_jobs
from kproxy.server.bulk_jobs import BulkJobs
from kproxy.virtual.folds import jobs as job_fold
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.jobs import Job, decode_job
from tests.simulation.bulk.world import BulkWorld
from tests.simulation.seeds import named, see, seeds

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def small_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_jobs, "_LOT", 4)


def run(seed: int) -> Counter[str]:
    world = BulkWorld(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_jobs, "answer", world.answered)
        anyio.run(world.run)
    return world.seen


@seeds(8, long=400)
def test_a_job_touches_what_it_has_written_down_and_that_once(seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            run(seed)


def test_enough_happens() -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        seen += run(seed)
    for name in (
        "late change", "killed behind a request", "paused", "stopped", "made anew", "two owners",
        "written down", "over",
    ):  # fmt: skip
        assert seen[name] > 1, seen


def _any_change_is_taken(patch: Patch) -> None:
    def taken(data: bytes) -> Job:
        return decode_job(data)._replace(changed_at=taken.asked)  # type: ignore[attr-defined]

    def change(self: Any, log_offset: int, envelope: Any, location: Any) -> Outcome:
        taken.asked = envelope.number  # type: ignore[attr-defined]
        return real(self, log_offset, envelope, location)

    real = job_fold.JobFold.change
    patch.setattr(job_fold, "decode_job", taken)
    patch.setattr(job_fold.JobFold, "change", change)


def _a_job_that_is_not_there_is_changed(patch: Patch) -> None:
    real = job_fold.JobFold.change

    def change(self: Any, log_offset: int, envelope: Any, location: Any) -> Outcome:
        key = job_fold.job_key(job_fold.ChangeJob.decode(envelope).name)
        if self._state.get(key) is None:
            envelope.number = job_fold.NO_JOB
        return real(self, log_offset, envelope, location)

    patch.setattr(job_fold.JobFold, "change", change)


def _queues_are_deleted_by_their_names(patch: Patch) -> None:
    async def delete(self: Any, lot: Any) -> Any:
        topics = [{"name": name, "topic_id": None} for name, _ in lot]
        told = await self._call(20, 6, {"topics": topics, "timeout": 1000})
        return [(one.error_code, one.error_message) for one in told.responses]

    patch.setattr(bulk_jobs._Client, "delete", delete)


def _a_new_owner_takes_the_lot_for_done(patch: Patch) -> None:
    real = BulkJobs._done

    async def done(self: Any, client: Any, job: Any, lot: Any) -> Any:
        first = not self.__dict__.setdefault("any", False)
        self.any = True
        if first:
            return bulk_jobs.Outcome(len(lot), 0, "")
        return await real(self, client, job, lot)

    patch.setattr(BulkJobs, "_done", done)


def _a_lot_without_an_answer_is_refused(patch: Patch) -> None:
    real = BulkJobs._done

    async def done(self: Any, client: Any, job: Any, lot: Any) -> Any:
        try:
            return await real(self, client, job, lot)
        except bulk_jobs.KafkaError:
            return bulk_jobs.Outcome(0, len(lot), "")

    patch.setattr(BulkJobs, "_done", done)


def _the_next_lot_is_found_from_its_first_name_again(patch: Patch) -> None:
    real = bulk_jobs._Client.found

    async def found(self: Any, search: Any, after: str, most: int) -> Any:
        lot, following = await real(self, search, after, most)
        return lot, following and lot[-1][0]

    patch.setattr(bulk_jobs._Client, "found", found)


MISTAKES: list[Callable[[Patch], None]] = [
    _any_change_is_taken, _a_job_that_is_not_there_is_changed, _queues_are_deleted_by_their_names,
    _a_new_owner_takes_the_lot_for_done, _a_lot_without_an_answer_is_refused,
    _the_next_lot_is_found_from_its_first_name_again,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__[1:])
def test_planted_mistakes_are_found(monkeypatch: Patch, mistake: Callable[[Patch], None]) -> None:
    mistake(monkeypatch)
    see(run, range(40))
