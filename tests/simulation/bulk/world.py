"""A worker's shard 0 with bulk jobs, owners that die and overlap, and users who change queues.

A process that is killed leaves what it has sent. Requests of a job may fail, before or after they
had their effect. Users make queues anew under names of deleted ones, and stop and pause jobs.
"""

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from kproxy.common.errors import Code, KafkaError
from kproxy.server import bulk_jobs
from kproxy.server.bulk_jobs import BulkJobs
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.jobs import NO_JOB, ChangeJob
from kproxy.virtual.commands.queues import DeleteQueue
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.jobs import Job, decode_job, job_key
from tests.fakes import memory_worker

NAMES = [f"{letter}{number:02}" for letter in "ab" for number in range(25)]
_REAL = bulk_jobs.answer


class Killed(Exception):
    """The process of a runner ends here."""


def begun(do: str) -> dict[str, Any]:
    return {
        "by": "- User:ANONYMOUS", "do": do, "set": {"retention.ms": "5"} if do == "set" else {},
        "unset": [], "search": {"prefix": "a"}, "rate": "", "paused": False, "queues": -1,
        "after": "", "lot": [], "done": 0, "refused": 0, "reason": "", "over": False,
    }  # fmt: skip


class BulkWorld:
    """One seed. `lots`: the queues that each job has written down, by id, in this order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.worker = memory_worker()
        shard: Any = self.worker.any_shard()
        self.shard = shard
        self.lots: dict[str, Counter[str]] = {}
        self.by_users: set[str] = set()
        self.stopped: set[str] = set()
        self.there_at_first: dict[str, set[str]] = {}
        self.calm = self.paused = False
        """`paused`: as a user has last said of job j."""
        shard.on_command = self._applied
        for name in NAMES:
            self.worker.catalogue.create(name, 1)

    def ids(self, prefix: str = "") -> dict[str, str]:
        queues = self.worker.catalogue.all(prefix)
        return {q.queue_id.hex(): q.name for q in queues if q.name.startswith(prefix)}

    def job(self, name: str) -> Job | None:
        row = self.shard.state.get(job_key(name))
        return None if row is None else decode_job(row)

    # -- held against what is applied

    def _applied(self, log_offset: int, envelope: Envelope, outcome: Outcome) -> None:
        if outcome.code:
            self.seen["late change"] += envelope.kind == Kind.CHANGE_JOB
        elif envelope.kind == Kind.DELETE:
            gone = DeleteQueue.decode(envelope).queue_id.hex()
            meant = any(gone in lots for lots in self.lots.values())
            assert meant or gone in self.by_users, "a queue went that no job has written down"
        elif envelope.kind == Kind.CHANGE_JOB:
            asked = ChangeJob.decode(envelope)
            assert asked.name not in self.stopped, "a job goes on that was stopped"
            assert asked.name != "j" or not asked.value or asked.value["paused"] == self.paused, (
                "a job goes on that was paused"
            )
            if asked.value is None:
                self.stopped.add(asked.name)
            elif asked.as_of != NO_JOB and asked.value["lot"] != self._lot.get(asked.name):
                self.lots[asked.name].update(digits for _, digits in asked.value["lot"])
            self._lot[asked.name] = (asked.value or {}).get("lot")

    @property
    def _lot(self) -> dict[str, Any]:
        return self.__dict__.setdefault("last_lots", {})

    # -- the acts

    async def answered(self, worker: Any, accepted: Any) -> Any:
        """Answer as the server does, or not, before or after it had its effect."""
        for _ in range(self.random.randrange(3)):
            await checkpoint()
        fate = 9 if self.calm else self.random.randrange(10)
        if fate == 0:
            raise Killed
        if fate == 1:
            raise KafkaError(Code.REQUEST_TIMED_OUT)
        told = await _REAL(worker, accepted)
        if fate == 2:
            self.seen["killed behind a request"] += 1
            raise Killed
        if fate == 3:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
        for _ in range(self.random.randrange(3)):
            await checkpoint()
        return told

    async def owner(self) -> None:
        """Serve the jobs for some looks, as one who may be killed."""
        jobs = BulkJobs(self.worker)
        with suppress(Killed):
            for _ in range(self.random.randint(1, 4)):
                await jobs.look()
                await checkpoint()

    def change(self, name: str, value: dict[str, Any] | None, as_of: int) -> None:
        self.shard.append([ChangeJob(name, as_of, value).envelope()])

    def user(self) -> None:
        job = self.job("j")
        match self.random.randrange(8):
            case 0 if job is not None:
                self.seen["paused"] += 1
                self.paused = not job.value["paused"]
                self.change("j", job.value | {"paused": not job.value["paused"]}, job.changed_at)
            case 1 if job is not None and self.random.random() < 0.5:
                self.seen["stopped"] += 1
                self.change("j", None, job.changed_at)
            case 2 | 3:
                gone = [name for name in NAMES if self.worker.catalogue.find(name) is None]
                name = self.random.choice(gone or NAMES)
                self.seen["made anew"] += self.worker.catalogue.find(name) is None
                self.worker.catalogue.create(name, 1)
            case 4:
                queue = self.worker.catalogue.find(self.random.choice(NAMES))
                if queue is not None:
                    self.by_users.add(queue.queue_id.hex())
                    self.shard.append([DeleteQueue(queue.queue_id).envelope()])
            case _:
                pass

    # -- a run

    async def run(self) -> None:
        for name, do in (("j", "delete"), ("k", "set"), ("l", "delete")):
            self.lots[name] = Counter()
            self.there_at_first[name] = set(self.ids("a"))
            if name != "l":
                self.change(name, begun(do), NO_JOB)
        for _ in range(12):
            await self._some()
        job = self.job("j")
        if job is not None and job.value["paused"]:
            self.paused = False
            self.change("j", job.value | {"paused": False}, job.changed_at)
        self.calm = True
        jobs = BulkJobs(self.worker)
        while await jobs.look():
            pass
        self._check("j")
        self._check("k")

    async def _some(self) -> None:
        owners = self.random.choice((1, 1, 2))
        self.seen["two owners"] += owners == 2
        async with anyio.create_task_group() as tasks:
            for _ in range(owners):
                tasks.start_soon(self.owner)
            for _ in range(self.random.randrange(3)):
                await checkpoint()
                self.user()

    def _check(self, name: str) -> None:
        lots = self.lots[name]
        assert set(lots.values()) <= {1}, "a queue is in two lots"
        self.seen["written down"] += len(lots)
        job = self.job(name)
        if job is None:
            return
        assert job.value["over"]
        assert job.value["done"] + job.value["refused"] == len(lots)
        assert job.value["refused"] == 0
        left = set(self.ids("a"))
        if name == "j":
            assert not left & self.there_at_first[name], "a queue that matches is left"
            assert not left & lots.keys(), "a queue that was written down is left"
        else:
            for digits in left & lots.keys():
                queue = self.worker.catalogue.find(self.ids()[digits])
                assert queue is not None
                assert queue.configs.get("retention.ms") == "5", "a queue is not set"
        self.seen["over"] += 1
