"""Committed offsets that nobody uses expire after `offsets_retention_minutes`, as in Kafka.

A group without members: its offsets expire that long after the last member left or the offset was
committed, whichever is later. A group with members: an offset expires that long after its commit,
if no member reads the queue. An offset of a deleted queue expires at once. None expires while an
open transaction has staged a later one of its partition. A share group has no offsets, and stays;
what it has of deleted queues goes.

The scanner appends EXPIRE. The fold ignores it where the group or the offset has changed since the
scan. An `e` row files each group under the earliest time at which an offset of it can expire.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import structlog

from kproxy.config.server import Config
from kproxy.groups.model.group import Group
from kproxy.loop.pace import scanned
from kproxy.metadata.catalogue import Lookup
from kproxy.metadata.queue_settings import LOOK_AGAIN_MS
from kproxy.shard.appends import append_all
from kproxy.shard.due_index import DueIndexScanner
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.offsets import ExpireOffsets
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows.groups import GroupRow, decode_group
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.offsets import Committed
from kproxy.virtual.types import QueueId

_log = structlog.get_logger()

_ROWS_AT_ONCE = 100
_OFFSETS_MAX = 2000  # expired by one command: some ten milliseconds of the loop
_PAUSE = 500

Load = Callable[[str], Awaitable[Group | None]]


class OffsetExpiry(DueIndexScanner):
    """An expiry of the offsets of one shard's groups; `run` until cancelled."""

    def __init__(
        self,
        shard: Shard,
        config: Config,
        lookup: Lookup,
        now_ms: Callable[[], int],
        load: Load,
        going: Callable[[str], bool],
        forget_gone_queues: Callable[[str, int], Awaitable[None]],
    ) -> None:
        """Set up; `going` says whether a group is being deleted, and has its deletion continued.

        `forget_gone_queues` removes what a share group, of this version, has of deleted queues.
        """
        self._retention_ms = config.offsets_retention_minutes * 60_000
        period_ms = min(config.offsets_check_ms, self._retention_ms)
        super().__init__(shard, RowKind.GROUP_DUE, _ROWS_AT_ONCE, period_ms / 1000)
        self._lookup = lookup
        self._now_ms = now_ms
        self._load = load
        self._going = going
        self._forget_gone_queues = forget_gone_queues
        self._begun: dict[str, bytes] = {}  # groups with more than one command expires

    async def scan_once(self) -> bool:
        """Evaluate some groups that are due; whether there may be more."""
        now = self._now_ms()
        before_ms = now - self._retention_ms
        late = group_rows.group_due_key(now + LOOK_AGAIN_MS, "")
        due, more = self._next_due(group_rows.group_due_key(before_ms, ""), late)
        found = self._sort_out(due)
        judged: list[Envelope] = []
        offsets, unfinished = 0, False
        for group, head in found:
            if offsets >= _OFFSETS_MAX:
                unfinished = True
                break
            envelope, count = await self._evaluate(group, head, before_ms)
            judged.append(envelope)
            offsets += count
            unfinished = unfinished or envelope.number == head.look_ms
        if not self._shard.serving:
            self._retry()
            return False
        if judged:
            outcomes = await append_all((self._shard, envelope) for envelope in judged)
            if any(outcome.code for outcome in outcomes):
                self._begun.clear()
                self._retry()
                return False  # they changed meanwhile, or the log is full: another time
            _log.debug("offsets_expired", shard=self._shard.shard, groups=len(judged))
        if unfinished:
            self._retry()
        return more or unfinished

    def _sort_out(self, due: list[bytes]) -> list[tuple[str, GroupRow]]:
        """Return (group, its head) of each due row. Remove rows of an earlier state."""
        stale: dict[bytes, bytes | None] = {}
        found = []
        for key in due:
            filed_ms, group = group_rows.group_due_of(key)
            data = self._shard.state.get(group_rows.group_key(group))
            head = None if data is None else decode_group(data)
            if head is None or max(0, head.look_ms) != filed_ms:
                stale[key] = None  # an earlier row, left by a rebuild
            elif head.going:
                self._going(group)
                self._leave(key)
            else:
                found.append((group, head))
        if stale:
            self._shard.commit(stale)
        return found

    async def _evaluate(self, group: str, head: GroupRow, before_ms: int) -> tuple[Envelope, int]:
        """Return the EXPIRE of a group, the time of its next scan, and how many offsets expire."""
        members = await self._load(group) if head.members else None
        used = members.subscribed() if members is not None else frozenset()
        empty_since_ms = 0 if head.kind == "offsets" else head.empty_since_ms
        expired: list[tuple[QueueId, int, int]] = []
        again_ms, left = self._now_ms(), False
        state = self._shard.state
        staged = state.any_pending(group)
        async with aclosing(self._offsets(group)) as offsets:
            async for key, committed in offsets:
                queue_id, index = offset_rows.partition_of_offset(key)
                queue = self._lookup.find_id(queue_id)
                if queue is not None and (used is None or queue.name in used):
                    left = True
                    continue
                since_ms = committed.time_ms
                if not head.members:
                    since_ms = max(since_ms, empty_since_ms)
                if queue is not None and since_ms >= before_ms:
                    again_ms, left = min(again_ms, since_ms), True
                    continue
                if staged and state.any_pending(group, (queue_id, index)):
                    again_ms, left = min(again_ms, before_ms + round(self._period_s * 1000)), True
                    continue
                expired.append((queue_id, index, committed.time_ms))
                if len(expired) == _OFFSETS_MAX:
                    self._begun[group] = key + b"\0"
                    break
        if group in self._begun:
            left = True  # there may be more
            again_ms = head.look_ms
            if len(expired) < _OFFSETS_MAX:
                del self._begun[group]  # once more from the first
        if head.kind == "share":
            left = True  # as in Kafka, it stays until it is deleted
            await self._forget_gone_queues(group, head.version)
        left = left or state.any_pending(group)
        if not left and not head.members:
            again_ms = head.look_ms  # once more, then it goes
        expiry = ExpireOffsets(group, head.version, not left, expired, again_ms)
        return expiry.envelope(self._shard.level.value), len(expired)

    async def _offsets(self, group: str) -> AsyncGenerator[tuple[bytes, Committed], None]:
        """Yield a group's offsets, from where its last scan ended. Other tasks run in between."""
        start, end = offset_rows.offset_range(group)
        start = self._begun.get(group, start)  # RocksDB would step over what was deleted
        async with aclosing(scanned(self._shard.kv.scan, start, end, _PAUSE)) as lots:
            async for found in lots:
                for key, value in found:
                    yield key, offset_rows.decode_committed(value)
