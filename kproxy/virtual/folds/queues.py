"""The fold's part for queues: how they are made, changed and deleted, and what other shards learn.

A queue's home is the shard of its name. It leaves a note of each decision for partitions in other
shards; ASSIGN_PARTITIONS and ROUTE tell their owners.
"""

import json
from dataclasses import replace

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import (
    AssignPartitions,
    ConfigureQueue,
    CreateQueue,
    DeleteQueue,
    DropTombstone,
    ExpireQueue,
    GrowQueue,
    QueueReady,
)
from kproxy.virtual.commands.routes import DefineRoute
from kproxy.virtual.folds.delays import DelayFold
from kproxy.virtual.folds.idle import is_idle
from kproxy.virtual.folds.redrives import redrives_between
from kproxy.virtual.folds.route_definitions import (
    FROM,
    FROM_SETTINGS,
    FROM_START,
    crowded,
    definitions_between,
    to_tell,
    told_of,
)
from kproxy.virtual.folds.routes import RouteFold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.rows.routes import EPOCHS_MAX
from kproxy.virtual.state import State
from kproxy.virtual.types import LogOffset, QueueId, ShardId

_NO_QUEUE = Outcome(Code.UNKNOWN_TOPIC_ID)


class QueueFold:
    """The application of queues' commands to a shard's state."""

    def __init__(
        self, state: State, shard: ShardId, shards: int, routes: RouteFold, delays: DelayFold
    ) -> None:
        self._state = state
        self._shard = shard
        self._shards = shards
        self._routes = routes
        self._definitions = routes.definitions
        self._delays = delays

    def _mine(self, name: str, partitions: range) -> list[int]:
        """Return which of these partitions of a queue live in this shard."""
        if self._shards == 1:
            return list(partitions)
        home, shards = shard_of(name, self._shards), self._shards
        return [i for i in partitions if (home + i) % shards == self._shard]

    def route(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Define a route; the outcome's queue is the source.

        POLICY_VIOLATION: it has too many routes. THROTTLING_QUOTA_EXCEEDED: ask again, once more of
        its records are passed on.
        """
        asked = DefineRoute.decode(envelope)
        if asked.waits and self._crowds(log_offset, asked.definer, asked.source, asked.spec):
            return Outcome(Code.THROTTLING_QUOTA_EXCEEDED)
        code = self._define(log_offset, asked)
        return Outcome(code, queue=self._state.queue(asked.source))

    def _crowds(self, log_offset: int, definer: QueueId, source: str, spec: str) -> bool:
        """Return whether partitions here have no room for another epoch of a route."""
        queue = self._state.queue(source)
        if queue is None:
            return False
        mine = self._mine(source, range(queue.wanted))
        return self._routes.crowds(queue.queue_id, mine, {definer: spec.encode()}, log_offset)

    def _define(self, log_offset: int, asked: DefineRoute) -> Code:
        code = self._definitions.define(asked)
        source = self._state.queue(asked.source)
        if code == Code.NONE and source is not None:
            self._tell_routes(log_offset, source, asked.waits)
        return code or Code.NONE

    def _tell_routes(self, log_offset: int, queue: Queue, waits: bool = False) -> None:
        """Have all partitions of a queue know the routes from it."""
        mine = self._mine(queue.name, range(queue.wanted))
        routes = self._definitions.routes_from(queue.name)
        self._routes.tell(queue.queue_id, mine, routes, log_offset)
        if len(mine) < queue.wanted:
            self._assign_later(log_offset, queue, queue.wanted, waits=waits)

    def _reroute(
        self, log_offset: int, before: Queue | None, after: Queue | None, waits: bool = False
    ) -> Code:
        """Define where records go by a queue's changed settings; those of a deleted one nowhere."""
        queue = after or before
        assert queue is not None
        elsewhere: dict[str, list[object]] = {}
        code = Code.NONE
        from_start = queue.configs.get(FROM_START) == "true"
        for definer, spec in redrives_between(before, after):
            if after is None:
                self._definitions.forget(queue.name, definer)
            else:
                asked = DefineRoute(definer, queue.name, spec, True, log_offset, waits)
                code = self._define(log_offset, asked) or code
        for source, spec in definitions_between(before, after).items():
            if source == queue.name and after is None:
                self._definitions.forget(source, queue.queue_id)
            elif source == queue.name or self._shards == 1:
                asked = DefineRoute(queue.queue_id, source, spec, from_start, log_offset, waits)
                code = self._define(log_offset, asked) or code
            else:
                elsewhere[source] = [spec, from_start]
        if elsewhere:
            self._assign_later(log_offset, queue, queue.wanted if after else 0, elsewhere, waits)
        return code

    def _put_queue(self, log_offset: int, queue: Queue) -> Outcome:
        """Note a new or changed queue; other shards that hold parts of it are to be told."""
        if queue.wanted > queue.partitions:
            self._assign_later(log_offset, queue, queue.wanted)
        self._state.put_queue(queue)
        return Outcome(Code.NONE, queue.partitions, queue=queue)

    def _assign_later(
        self, log_offset: int, queue: Queue, partitions: int,
        define: dict[str, list[object]] | None = None, waits: bool = False,
    ) -> None:  # fmt: skip
        """Leave a note of what other shards are to be told: partitions, and routes.

        `define`: routes of this queue, by the names of their sources. `waits`: as in CONFIGURE.
        """
        work: dict[str, object] = {
            "name": queue.name,
            "as_of": log_offset,
            "partitions": partitions,
            "over": queue.wanted,
        }
        key = rows.pending_assignment_key(queue.queue_id)
        if partitions and (routes := self._definitions.routes_from(queue.name)):
            work["routes"] = to_tell(routes)
        noted = self._state.get(key)
        before = {} if noted is None else json.loads(noted)
        untold = before.get("define", {})
        if waits or before.get("waits"):
            work["waits"] = True
        if define or untold:
            work["define"] = untold | (define or {})
        self._state.put(key, json.dumps(work).encode())

    def create(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = CreateQueue.decode(envelope)
        queue_id, name, wanted = asked.queue_id, asked.name, asked.partitions
        existing = self._state.queue(name)
        if existing is not None:
            return Outcome(Code.TOPIC_ALREADY_EXISTS, queue=existing)
        mine = self._mine(name, range(wanted))
        queue = Queue(
            name=name, queue_id=queue_id, partitions=wanted if len(mine) == wanted else 0,
            wanted=wanted, created_at=LogOffset(log_offset), changed_at=LogOffset(log_offset),
            configs=asked.configs, unasked=asked.unasked,
        )  # fmt: skip
        refused = self._definitions.refusal(None, queue)
        if refused is not None:
            return refused
        self._state.add_partitions(queue_id, mine)
        outcome = self._put_queue(log_offset, queue)
        if asked.configs:
            self._reroute(log_offset, None, queue)
        if self._definitions.any_defined and self._definitions.routes_from(name):
            self._tell_routes(log_offset, queue)
        return outcome

    def grow(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = GrowQueue.decode(envelope)
        queue_id, wanted = asked.queue_id, asked.partitions
        queue = self._state.queue_by_id(queue_id)
        if queue is None:
            return _NO_QUEUE
        if wanted <= queue.wanted:
            return Outcome(
                Code.INVALID_PARTITIONS,
                message=f"the queue has {queue.wanted} partitions already",
                queue=queue,
            )
        added = self._mine(queue.name, range(queue.wanted, wanted))
        whole = queue.partitions == queue.wanted and len(added) == wanted - queue.wanted
        grown = replace(
            queue, partitions=wanted if whole else queue.partitions, wanted=wanted,
            changed_at=LogOffset(log_offset),
        )  # fmt: skip
        refused = self._definitions.refusal(queue, grown)
        if refused is not None:
            return refused
        self._state.add_partitions(queue.queue_id, added)
        outcome = self._put_queue(log_offset, grown)
        if self._definitions.any_defined:
            self._tell_routes(log_offset, grown)
        return outcome

    def configure(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = ConfigureQueue.decode(envelope)
        queue = self._state.queue_by_id(asked.queue_id)
        if queue is None:
            return _NO_QUEUE
        kept = {} if asked.replace_all else dict(queue.configs)
        for name in asked.dropped:
            kept.pop(name, None)
        changed = replace(
            queue, configs=kept | asked.given, changed_at=LogOffset(log_offset), unasked=False
        )
        refused = self._definitions.refusal(queue, changed)
        if refused is None and asked.waits:
            refused = self._crowding(log_offset, queue, changed)
        if refused is not None:
            return refused
        for index in self._mine(queue.name, range(queue.wanted)):
            self._state.file(rows.retention_due_key(0, queue.queue_id, index))
            self._state.touched.add((queue.queue_id, index))  # its readers obey settings, too
        outcome = self._put_queue(log_offset, changed)
        self._reroute(log_offset, queue, changed, asked.waits)
        return outcome

    def _crowding(self, log_offset: int, before: Queue, after: Queue) -> Outcome | None:
        """Return why a queue's route is not changed once more; of sources whose home is here."""
        for source, spec in definitions_between(before, after).items():
            if self._crowds(log_offset, after.queue_id, source, spec):
                message = (
                    f"{EPOCHS_MAX} changes of this route wait for records of {source} to be passed"
                    " on: try again once its LAG is less"
                )
                return Outcome(Code.INVALID_CONFIG, message=message, queue=before)
        return None

    def queue_ready(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = QueueReady.decode(envelope)
        queue_id, as_of, refused = asked.queue_id, asked.as_of, asked.refused
        work = self._state.get(rows.pending_assignment_key(queue_id))
        if work is None or json.loads(work)["as_of"] != as_of:
            return Outcome(Code.NONE)
        self._state.put(rows.pending_assignment_key(queue_id), None)
        queue = self._state.queue_by_id(queue_id)
        if queue is None:
            return Outcome(Code.NONE)
        if refused:
            return self._without_route(log_offset, queue, as_of)
        usable = replace(queue, partitions=queue.wanted, changed_at=LogOffset(log_offset))
        return self._put_queue(log_offset, usable)

    def _without_route(self, log_offset: int, queue: Queue, as_of: int) -> Outcome:
        """Undo a queue's refused route: a new queue goes again, others go without."""
        if queue.created_at == as_of:
            self._drop_queue(log_offset, queue)
        else:
            left = {n: value for n, value in queue.configs.items() if n not in FROM_SETTINGS}
            changed = replace(queue, configs=left, changed_at=LogOffset(log_offset))
            self._put_queue(log_offset, changed)
            self._reroute(log_offset, queue, changed)
        return crowded(queue.configs.get(FROM, ""), queue)

    def delete(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        queue = self._state.queue_by_id(DeleteQueue.decode(envelope).queue_id)
        if queue is None:
            return _NO_QUEUE
        self._drop_queue(log_offset, queue)
        return Outcome(Code.NONE, queue=queue)

    def expire(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Delete a queue that nobody uses; POLICY_VIOLATION: it is in use."""
        queue = self._state.queue_by_id(ExpireQueue.decode(envelope).queue_id)
        if queue is None:
            return _NO_QUEUE
        if not is_idle(self._state, envelope, queue):
            return Outcome(Code.POLICY_VIOLATION, message="the queue is in use")
        self._drop_queue(log_offset, queue)
        return Outcome(Code.NONE, queue=queue)

    def _drop_queue(self, log_offset: int, queue: Queue) -> None:
        self._state.drop_queue(queue, log_offset)
        mine = self._mine(queue.name, range(queue.wanted))
        for index in mine:
            self._state.drop_partition((queue.queue_id, index))
        self._delays.drop(queue.queue_id, mine)
        self._state.sweep_later(log_offset, queue.queue_id, -1)
        if len(mine) < queue.wanted:
            self._assign_later(log_offset, queue, 0)
        self._reroute(log_offset, queue, None)

    def assign_partitions(
        self, log_offset: int, envelope: Envelope, location: LogLocation
    ) -> Outcome:
        asked = AssignPartitions.decode(envelope)
        queue_id, name, partitions = asked.queue_id, asked.name, asked.partitions
        key = rows.assignment_key(queue_id)
        data = self._state.get(key)
        known_as_of, known = (-1, 0) if data is None else rows.decode_assignment(data)
        if asked.as_of <= known_as_of:
            return Outcome(Code.NONE)  # told before, or a late one
        if partitions:
            mine = self._mine(name, range(partitions))
            told = told_of(asked.routes)
            specs = {one.definer: one.spec for one in told}
            if asked.waits and self._routes.crowds(queue_id, mine, specs, asked.as_of, others=b""):
                return Outcome(Code.THROTTLING_QUOTA_EXCEEDED)  # asked again
            self._state.add_partitions(queue_id, self._mine(name, range(known, partitions)))
            self._routes.tell(queue_id, mine, told, asked.as_of)
        else:
            mine = self._mine(name, range(known))
            for index in mine:
                self._state.drop_partition((queue_id, index))
            self._delays.drop(queue_id, mine)
            self._state.sweep_later(log_offset, queue_id, -1)
            forget_ms = asked.time_ms + rows.TOMBSTONE_KEPT_MS
            self._state.file(rows.retention_due_key(forget_ms, queue_id, rows.TOMBSTONE_INDEX))
        self._state.put(key, rows.encode_assignment(asked.as_of, partitions))
        return Outcome(Code.NONE)

    def drop_tombstone(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Drop a tombstone: no late command can bring the deleted queue back any more."""
        key = rows.assignment_key(DropTombstone.decode(envelope).queue_id)
        data = self._state.get(key)
        if data is not None and rows.decode_assignment(data)[1] == 0:
            self._state.put(key, None)
        return Outcome(Code.NONE)
