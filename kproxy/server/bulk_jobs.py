"""Bulk jobs: queues that are deleted, or get another setting, all whose names are searched for.

A job is a row of shard 0 (`virtual.rows.jobs`), and whoever serves that shard goes on with it. It
does nothing that a client could not: its requests go the way of any other, with the rights, the
quotas and the audit of whoever has ordered it.

A *lot* is some queues by name and id. A job writes down its next lot before it touches the first
of it, in one CHANGE_JOB with what has become of the last one. So whatever is killed, the lot that
may be half done is done once more, and its ids say which queues were meant: one that was made anew
under the name of a deleted one is another. The fold takes a change by whoever knows the job as it
stands.
"""

from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import anyio
import structlog

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.asking import ASKING, Asking
from kproxy.metadata.lane_settings import rate_of
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.protocol.name_search import NameSearch
from kproxy.protocol.varint import Malformed
from kproxy.security.behalf import asked_for_rights, signer
from kproxy.security.peer import Peer, holder
from kproxy.server.dispatch import accept, answer
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.jobs import ChangeJob
from kproxy.virtual.rows.jobs import JOBS_SHARD, decode_job, job_key
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import name_of
from kproxy.virtual.types import QueueId
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker

_log = structlog.get_logger()

_LOT = 200
_LOOK_S = 1.0
_JOBS_READ = 200
_DONE = frozenset((Code.NONE, Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION))
"""The answers after which a queue is as it is to be, or is not there any more."""
_REFUSED = frozenset((
    Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED, Code.INVALID_CONFIG,
    Code.INVALID_REQUEST, Code.POLICY_VIOLATION, Code.INVALID_TOPIC_EXCEPTION,
))  # fmt: skip
"""The answers that another try would get again. After any other the lot is tried once more."""

Lot = list[tuple[str, str]]
"""Queues: name, and id as hexadecimal digits."""


class _TryAgain(Exception):
    """A lot is not done yet, or nobody says so."""


class Outcome(NamedTuple):
    """The result of a lot."""

    done: int
    refused: int
    reason: str


class BulkJobs:
    """The worker's part in bulk jobs; `run` until cancelled."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._paced: dict[str, tuple[float, int]] = {}
        """The time at which a job's last lot was begun, and how many queues it had."""
        self._throttled: dict[str, float] = {}
        """The time until which a job waits by a quota."""
        self._waiting: dict[str, str] = {}
        """The reason why a job waits, as it was said."""

    async def run(self) -> None:
        while True:
            moved = False
            with suppress(KafkaError):  # the shard leaves
                moved = await self.look()
            if not moved:
                await anyio.sleep(_LOOK_S)

    async def look(self) -> bool:
        """Go on with each job by a lot, if shard 0 is served here; whether any went on."""
        shard = self._worker.routes.serving(JOBS_SHARD)
        if shard is None:
            return False
        names = [name_of(key) for key, _ in islice(shard.kv.scan(*RowKind.JOB.range()), _JOBS_READ)]
        for known in (self._paced, self._throttled, self._waiting):
            for name in known.keys() - set(names):
                del known[name]
        moved = False
        for name in names:
            try:
                moved |= await self.step(shard, name)
            except (KafkaError, Malformed, _TryAgain) as error:
                self._wait(name, str(error) or type(error).__name__)
            else:
                self._waiting.pop(name, None)
        return moved

    def _wait(self, name: str, reason: str) -> None:
        if self._waiting.get(name) != reason:
            self._waiting[name] = reason
            _log.warning("bulk_job_waits", job=name, reason=reason)

    async def step(self, shard: Shard, name: str) -> bool:
        """Do a job's lot, and write down the next; whether it went on.

        Raise KafkaError, Malformed or _TryAgain: it goes on from here later.
        """
        row = shard.state.get(job_key(name))
        if row is None:
            return False
        job, as_of = decode_job(row)
        now = anyio.current_time()
        if job["over"] or job["paused"] or now < self._due(name, job):
            return False
        client = _Client(self._worker, job["by"])
        try:
            return await self._gone_on(shard, name, job, as_of, client)
        finally:
            if client.throttle_s:
                self._throttled[name] = now + client.throttle_s

    def _due(self, name: str, job: dict[str, Any]) -> float:
        """Return when a job may go on."""
        began, queues = self._paced.get(name, (0.0, 0))
        every_s, _ = rate_of(job["rate"])
        return max(began + queues * every_s, self._throttled.get(name, 0.0))

    async def _gone_on(
        self, shard: Shard, name: str, job: dict[str, Any], as_of: int, client: "_Client"
    ) -> bool:
        now, lot = anyio.current_time(), job["lot"]
        outcome = await self._done(client, job, lot) if lot else Outcome(0, 0, "")
        every_s, _ = rate_of(job["rate"])
        most = max(1, min(_LOT, int(1 / every_s))) if every_s else _LOT
        found: Lot = []
        after: str | None = job["after"]
        if after is not None:
            found, after = await client.found(_search(job), after, most)
        changed = job | {
            "lot": found, "after": after, "done": job["done"] + outcome.done,
            "refused": job["refused"] + outcome.refused,
            "reason": job["reason"] or outcome.reason, "over": after is None and not found,
        }  # fmt: skip
        (told,) = await shard.append([ChangeJob(name, as_of, changed).envelope()]).wait()
        if told.code:
            return True  # it was changed meanwhile: what it is now is looked at next
        self._paced[name] = now, len(lot)
        if changed["over"]:
            _log.debug("bulk_job_over", job=name, done=changed["done"], refused=changed["refused"])
        return True

    async def _done(self, client: "_Client", job: dict[str, Any], lot: Lot) -> Outcome:
        """Do a lot. Raise _TryAgain, KafkaError or Malformed."""
        if job["do"] == "delete":
            told = await client.delete(lot)
        else:
            told = await client.configure(self._as_meant(lot), job["set"], job["unset"])
        refused, reason = 0, ""
        for code, message in told:
            if code in _DONE:
                continue
            if code not in _REFUSED:
                raise _TryAgain(message or Code(code).name)
            refused, reason = refused + 1, reason or message or Code(code).name
        return Outcome(len(lot) - refused, refused, reason[:200])

    def _as_meant(self, lot: Lot) -> list[str]:
        """Return the names of a lot that still stand for the queues that were meant."""
        find = self._worker.catalogue.find_id
        queues = (find(QueueId(bytes.fromhex(digits))) for _, digits in lot)
        return [queue.name for queue in queues if queue is not None]


def _search(job: dict[str, Any]) -> NameSearch:
    return NameSearch(**job["search"])


class _Client:
    """Requests within the worker, in the name of whoever has ordered a job."""

    def __init__(self, worker: Worker, signature: str) -> None:
        self._worker = worker
        self.throttle_s = 0.0
        """The time that it is to wait now, by its quotas."""
        self._peer = signer(signature) if asked_for_rights(signature) else Peer()

    async def _call(
        self, key: int, version: int, values: dict[str, Any], search: bytes = b""
    ) -> Any:
        frame = encode_request(key, version, 0, values, search)[4:]
        before = ASKING.set(Asking(holder(self._peer)))
        signal = NextRequestSignal()
        try:
            told = await answer(self._worker, accept(self._worker, frame, self._peer, signal))
        finally:
            ASKING.reset(before)
            self.throttle_s = max(self.throttle_s, signal.throttle_s)
        assert isinstance(told, bytes | bytearray)
        return decode_response(key, version, bytes(told[4:]))[1]

    async def found(self, search: NameSearch, after: str, most: int) -> tuple[Lot, str | None]:
        """Return some queues from a name on, and the name to go on from; None: there is no more."""
        cursor = {"topic_name": after, "partition_index": 0}
        values = {"topics": (), "response_partition_limit": most, "cursor": cursor}
        key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
        page = await self._call(key, 0, values, search.encode())
        for topic in page.topics:
            if topic.error_code:
                raise KafkaError(Code(topic.error_code), "the queues are not told")
        lot = [(topic.name, topic.topic_id.hex) for topic in page.topics]
        following = page.next_cursor
        if following is None:
            return lot, None
        if following.partition_index:  # the rest of the last queue
            return lot, following.topic_name + "\0"
        return lot, following.topic_name

    async def delete(self, lot: Lot) -> list[tuple[int, str | None]]:
        topics = [{"name": None, "topic_id": UUID(hex=digits)} for _, digits in lot]
        values = {"topics": topics, "timeout": 30_000}
        told = await self._call(ApiKey.DELETE_TOPICS, 6, values)
        return [(one.error_code, one.error_message) for one in told.responses]

    async def configure(
        self, names: list[str], given: dict[str, str], dropped: list[str]
    ) -> list[tuple[int, str | None]]:
        changes = [
            *({"name": n, "config_operation": 0, "value": value} for n, value in given.items()),
            *({"name": n, "config_operation": 1, "value": None} for n in dropped),
        ]
        resources = [
            {"resource_type": 2, "resource_name": name, "configs": changes} for name in names
        ]
        values = {"resources": resources, "validate_only": False}
        told = await self._call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)
        return [(one.error_code, one.error_message) for one in told.responses]
