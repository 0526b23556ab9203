"""The fold's part for routes: which records are passed on next, and what of them has landed.

A record's target follows from its bytes and its epoch alone, never from a setting as it is now: two
owners agree. The fold refuses nothing of what is shipped but what was taken before.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kproxy.common.errors import Code
from kproxy.protocol.batch import read_header
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.routes import Cut, ForgetLanded, Ship
from kproxy.virtual.folds import redrives
from kproxy.virtual.folds.route_definitions import Definitions, Told
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import routes as route_rows
from kproxy.virtual.rows.queues import Partition, Queue
from kproxy.virtual.rows.routes import (
    EPOCHS_MAX,
    NOTHING_LANDED,
    ROUTE_PARTS,
    ROUTES,
    Epoch,
    Route,
    is_redrive,
)
from kproxy.virtual.state import State
from kproxy.virtual.types import LogOffset, PartitionKey, QueueId, ShardId

_ID = struct.Struct(">QQ")
_TIME_MASK = (1 << 47) - 1


class RouteFold:
    """The application of routes to a shard's state."""

    def __init__(self, state: State, shard: ShardId, shards: int) -> None:
        self._state = state
        self._shard = shard
        self._shards = shards
        self.definitions = Definitions(state, shards)

    # -- routes beside the records

    def passed_on(self, source: PartitionKey, most: int) -> int:
        """Return the offset before which all routes have passed on what there was, or `most`."""
        found = self._state.scan(*ROUTES.range(source))
        return min(route_rows.landed_of(found), default=most)

    def crowds(
        self, queue_id: QueueId, indexes: Iterable[int], told: Mapping[QueueId, bytes], as_of: int,
        others: bytes | None = None,
    ) -> bool:  # fmt: skip
        """Return whether one of these partitions has no room for the epoch that a spec begins.

        It would take the last one's place, whose records then go elsewhere. `told`: specs by
        definer. `others`: the spec of any other; None: they do not change.
        """
        mine = set(indexes)
        for key, data in self._state.scan(*ROUTES.of_queue(queue_id)):
            source, definer = ROUTES.parts(key)
            spec = told.get(definer, others)
            if spec is None or source[1] not in mine or route_rows.ends_with(data, spec):
                continue
            if is_redrive(definer):
                continue  # it has two epochs, or three
            row, route = self._state.partition(source), route_rows.decode_route(data)
            if row is not None and route.as_of < as_of and _is_crowded(route, row):
                return True
        return False

    def tell(
        self, queue_id: QueueId, indexes: Iterable[int], routes: Sequence[Told], as_of: int
    ) -> None:
        """Define all routes of these partitions from now on; others than these end."""
        told = {one.definer: one for one in routes}
        known: dict[int, dict[QueueId, bytes]] = {}
        # At once: there may be thousands.
        for key, data in self._state.scan(*ROUTES.of_queue(queue_id)):
            (_, index), definer = ROUTES.parts(key)
            known.setdefault(index, {})[definer] = data
        for index in indexes:
            source = queue_id, index
            row = self._state.partition(source)
            if row is not None and (routes or row.any_routes):
                self._tell(source, row, told, known.get(index, {}), as_of)

    def _tell(
        self, source: PartitionKey, row: Partition, routes: dict[QueueId, Told],
        known: dict[QueueId, bytes], as_of: int,
    ) -> None:  # fmt: skip
        changed = False
        for definer, told in routes.items():
            if definer not in known:
                start = row.log_start if told.from_start else row.next_offset
                made = Route(start, start, 1, 0, as_of, (Epoch(start, told.spec),))
                if is_redrive(definer):
                    made = redrives.begun(start, row, told.spec, as_of)
                self._put(source, definer, made)
                changed = True
        for definer, data in known.items():
            spec = routes[definer].spec if definer in routes else b""
            if is_redrive(definer):
                changed |= self._end(source, definer, data, spec, as_of)
                continue
            if route_rows.ends_with(data, spec):
                continue  # as most do
            route = route_rows.decode_route(data)
            if route.as_of < as_of:
                self._put(source, definer, _turned(route, row, spec, as_of))
                changed = True
        if not row.any_routes and (routes or known):
            row.any_routes = True
            self._state.put_partition(source, row)
        if changed:
            self._state.routed.add(source)

    def _end(
        self, source: PartitionKey, definer: QueueId, data: bytes, spec: bytes, as_of: int
    ) -> bool:
        """End a redrive, or forget it where it is over; return whether it ends."""
        route = route_rows.decode_route(data)
        if spec or route.as_of >= as_of:
            return False
        if route.is_over:
            self._state.put(ROUTES.key(source, definer), None)
            return False
        changed = redrives.ended(route, as_of)
        if changed is not None:
            self._put(source, definer, changed)
        return changed is not None

    def _put(self, source: PartitionKey, definer: QueueId, route: Route) -> None:
        self._state.file(ROUTES.key(source, definer), route.encode())

    def cut(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Note a cut; the outcome's number is its end. NOT_LEADER_OR_FOLLOWER: it is void."""
        if not self._state.is_owners(envelope):
            return Outcome(Code.NOT_LEADER_OR_FOLLOWER)
        asked = Cut.decode(envelope)
        source, definer, after, through = asked.source, asked.definer, asked.after, asked.through
        row = self._state.partition(source)
        route = route_rows.route_in(self._state.get, source, definer)
        if row is None or route is None:
            return Outcome(Code.UNKNOWN_TOPIC_ID)
        if route.cut != after or not after <= through <= row.next_offset:
            return Outcome(Code.NOT_LEADER_OR_FOLLOWER)
        ends = route.ends
        if is_redrive(definer):
            if ends is None or through > ends:  # it has been ended meanwhile
                return Outcome(Code.NOT_LEADER_OR_FOLLOWER)
        elif ends is not None and route.cut >= ends:
            self._drop(source, definer, row)
            return Outcome(Code.UNKNOWN_TOPIC_ID)
        cut = route._replace(
            landed=route.cut, cut=through, parts=asked.parts, made=route.made + asked.made,
            epochs=_needed(route.epochs, route.cut),
        )  # fmt: skip
        key = ROUTES.key(source, definer)
        self._state.put(key, cut.encode())
        return Outcome(Code.NONE, through)

    def _drop(self, source: PartitionKey, definer: QueueId, row: Partition) -> None:
        self._state.put(ROUTES.key(source, definer), None)
        if not self._state.some(*ROUTES.range(source), 1):
            row.any_routes = False
        self._state.put_partition(source, row)

    # -- shipping

    def ship(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Append what is shipped. The outcome's number: targets that took a batch; -1: it is void.

        OFFSET_OUT_OF_RANGE: some of it was taken by an earlier cut, up to the offset in `numbers`.
        """
        state, asked = self._state, Ship.decode(envelope)
        landed = state.row(ROUTE_PARTS, asked.definer, asked.source) or NOTHING_LANDED
        if landed.has(asked.through, asked.part):
            return self._void(log_offset)
        if not self._is_cut(asked):
            return self._void(log_offset)._replace(code=Code.NOT_LEADER_OR_FOLLOWER)
        if 0 <= asked.after < landed.through < asked.through:
            void, numbers = self._void(log_offset), (landed.through,)
            return void._replace(code=Code.OFFSET_OUT_OF_RANGE, numbers=numbers)
        after = landed.with_part(asked.through, asked.part, asked.time_ms)
        state.put_row(ROUTE_PARTS, after, asked.definer, asked.source)
        if asked.only:
            return self._ship_to_definer(log_offset, asked, envelope, location)
        made, settled = list[Queue](), list[Queue]()
        body, taken = envelope.body, 0
        for number, (name, position, length, plain) in enumerate(asked.targets):
            queue = state.queue(name)
            if queue is None:
                configs = {} if plain else asked.configs
                queue, row = self._make(log_offset, asked, name, number, configs)
                made.append(queue)
            else:
                if queue.unasked and asked.configs and not plain and self._is_unused(queue):
                    queue = self._settled(log_offset, queue, asked.configs)
                    settled.append(queue)
                found = state.partition((queue.queue_id, 0))
                if found is None:
                    continue  # there is no queue without its first partition
                row = found
            target = queue.queue_id, 0
            look_ms = asked.look_ms if queue.configs == asked.configs else asked.time_ms
            place = LogLocation(location.segment, location.position + position, length)
            header = read_header(body, position)
            state.add_batch(target, row, header, place, log_offset, look_ms, routed=True)
            if queue.configs:
                state.note_shipped(target, queue)
            taken += 1
        return Outcome(Code.NONE, taken, numbers=(len(made),), made=(*made, *settled))

    def _is_unused(self, queue: Queue) -> bool:
        """Return whether all partitions of a queue are here, and none has ever had a record."""
        for index in range(queue.wanted):
            row = self._state.partition((queue.queue_id, index))
            if row is None or row.next_offset:
                return False
        return True

    def _settled(self, log_offset: int, queue: Queue, configs: dict[str, str]) -> Queue:
        """Return a queue that was looked up before its first record, as the route makes it."""
        changed = replace(queue, configs=configs, changed_at=LogOffset(log_offset), unasked=False)
        self._state.put_queue(changed)
        return changed

    def _is_cut(self, asked: Ship) -> bool:
        """Return whether the log has the cut that this is of; a source in another shard has been
        asked there."""
        if self._state.partition(asked.source) is None:
            return self._shards > 1
        route = route_rows.route_in(self._state.get, asked.source, asked.definer)
        return route is not None and route.cut == asked.through

    def _ship_to_definer(
        self, log_offset: int, asked: Ship, envelope: Envelope, location: LogLocation
    ) -> Outcome:
        """Ship to a queue that has asked for them: another of its name gets nothing."""
        ((name, position, length, _),) = asked.targets
        target = asked.definer, 0
        row = self._state.partition(target)
        queue = self._state.queue(name)
        if row is None or queue is None or queue.queue_id != asked.definer:
            return self._void(log_offset)
        place = LogLocation(location.segment, location.position + position, length)
        header = read_header(envelope.body, position)
        look_ms = asked.look_ms if not queue.configs else asked.time_ms
        self._state.add_batch(target, row, header, place, log_offset, look_ms, routed=True)
        self._state.note_shipped(target, queue)
        return Outcome(Code.NONE, 1, numbers=(0,))

    def _make(
        self, log_offset: int, asked: Ship, name: str, number: int, configs: dict[str, str]
    ) -> tuple[Queue, Partition]:
        """Return a target that is not there, and its one partition, as nobody says otherwise."""
        salt = asked.salt - asked.salt % self._shards + self._shard  # as `home_of` has it
        queue_id = QueueId(_ID.pack((asked.time_ms & _TIME_MASK) << 16 | number, salt))
        queue = Queue(
            name=name, queue_id=queue_id, partitions=1, wanted=1,
            created_at=LogOffset(log_offset), changed_at=LogOffset(log_offset),
            configs=configs,
        )  # fmt: skip
        row = self._state.add_partition((queue_id, 0))
        self._state.put_queue(queue)
        routes = self.definitions.routes_from(name)
        if routes:
            self.tell(queue_id, [0], routes, log_offset)
        return queue, row

    def _void(self, log_offset: int) -> Outcome:
        self._state.void(log_offset)
        return Outcome(Code.NONE, -1, numbers=(0,))

    def forget_landed(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = ForgetLanded.decode(envelope)
        for definer, source in asked.routes:
            landed = self._state.row(ROUTE_PARTS, definer, source)
            if landed is not None and landed.used_ms <= asked.time_ms:
                self._state.put(ROUTE_PARTS.key(definer, source), None)
        for key in asked.forwarded:
            if self._state.get(key) is not None:
                self._state.put(key, None)
        return Outcome(Code.NONE)


def _is_crowded(route: Route, row: Partition) -> bool:
    """Return whether all epochs that there may be have records, or may have."""
    return len(route.epochs) >= EPOCHS_MAX and route.epochs[-1].start < row.next_offset


def _turned(route: Route, row: Partition, spec: bytes, as_of: int) -> Route:
    """Return a route whose records go elsewhere from the next offset on."""
    epochs = route.epochs
    if epochs[-1].start >= row.next_offset or len(epochs) >= EPOCHS_MAX:
        epochs = (*epochs[:-1], Epoch(epochs[-1].start, spec))
    else:
        epochs = (*epochs, Epoch(row.next_offset, spec))
    return route._replace(as_of=as_of, epochs=epochs)


def _needed(epochs: tuple[Epoch, ...], landed: int) -> tuple[Epoch, ...]:
    """Return the epochs without those that nothing is left of."""
    first = 0
    while first + 1 < len(epochs) and epochs[first + 1].start <= landed:
        first += 1
    return epochs[first:]
