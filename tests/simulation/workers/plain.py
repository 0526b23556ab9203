"""The content of all logs of a cluster, as plainly as possible.

Queues, their starts and ends, groups and committed offsets. A producer numbers its records from
wherever it began, and nothing else is taken from it. Nobody here commits as a member. An envelope
that a log has twice is applied where it comes first.
"""

from dataclasses import dataclass, field

from kproxy.protocol.batch import read_header
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import CommitOffsets, DeleteOffsets
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.groups import decode_change
from tests.commands import values_of

_Key = tuple[bytes, int]


@dataclass
class PlainQueue:
    queue_id: bytes
    partitions: int
    configs: dict[str, str]


@dataclass
class PlainGroup:
    version: int
    kind: str = "offsets"
    members: int = 0


@dataclass
class PlainShard:
    starts: dict[_Key, int] = field(default_factory=dict)
    ends: dict[_Key, int] = field(default_factory=dict)
    sequences: dict[tuple[_Key, int], int] = field(default_factory=dict)
    spread: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # as of, partitions
    groups: dict[str, PlainGroup] = field(default_factory=dict)
    commits: dict[tuple[str, bytes, int], int] = field(default_factory=dict)
    taken: set[tuple[int, int]] = field(default_factory=set)  # writers and counters


class Plain:
    """A reader of envelopes as they land, in whatever log."""

    def __init__(self, shards: int) -> None:
        self.count = shards
        self.names: dict[str, PlainQueue] = {}
        self.ever: dict[bytes, str] = {}
        self.shards = [PlainShard() for _ in range(shards)]
        self.swept = 0
        self.faults: list[str] = []

    def alive(self, queue_id: bytes) -> bool:
        name = self.ever.get(queue_id)
        return name in self.names and self.names[name].queue_id == queue_id

    def land(self, shard: int, log_offset: int, envelope: Envelope) -> None:
        here, queue_id = self.shards[shard], bytes(envelope.queue_id)
        sent = envelope.writer, envelope.counter
        if sent in here.taken and envelope.kind != Kind.FOREIGN:
            return
        here.taken.add(sent)
        key = (queue_id, envelope.partition)
        match envelope.kind:
            case Kind.CREATE | Kind.GROW | Kind.CONFIGURE | Kind.DELETE:
                self._change(shard, queue_id, envelope)
            case Kind.ASSIGN_PARTITIONS:
                self._spread(shard, queue_id, envelope)
            case Kind.APPEND if key in here.ends:
                self._append(here, key, envelope)
            case Kind.TRIM if key in here.ends:
                self._trim(here, key, envelope.number)
            case Kind.GROUP:
                self._group(here, log_offset, envelope)
            case Kind.DELETE_GROUP:
                self._delete_group(here, values_of(envelope)["group"])
            case Kind.COMMIT:
                self._commit(here, log_offset, envelope)
            case Kind.DELETE_OFFSETS:
                self._forget(here, envelope)

    # -- queues

    def _change(self, shard: int, queue_id: bytes, envelope: Envelope) -> None:
        match envelope.kind:
            case Kind.CREATE:
                values = values_of(envelope)
                if values["name"] not in self.names:
                    self.names[values["name"]] = PlainQueue(queue_id, 0, dict(values["configs"]))
                    self.ever[queue_id] = values["name"]
                    self._grow(shard, queue_id, values["partitions"])
            case Kind.GROW if self.alive(queue_id):
                self._grow(shard, queue_id, envelope.number)
            case Kind.CONFIGURE if self.alive(queue_id):
                self.names[self.ever[queue_id]].configs |= values_of(envelope)["set"]
            case Kind.DELETE if self.alive(queue_id):
                del self.names[self.ever[queue_id]]
                self._drop(self.shards[shard], queue_id)

    def _grow(self, shard: int, queue_id: bytes, wanted: int) -> None:
        queue = self.names[self.ever[queue_id]]
        self._add(shard, queue_id, queue.partitions, wanted)
        queue.partitions = max(queue.partitions, wanted)

    def _add(self, shard: int, queue_id: bytes, first: int, wanted: int, name: str = "") -> None:
        for index in range(first, wanted):
            if shard_of(name or self.ever[queue_id], self.count, index) == shard:
                self.shards[shard].starts[queue_id, index] = 0
                self.shards[shard].ends[queue_id, index] = 0

    def _spread(self, shard: int, queue_id: bytes, envelope: Envelope) -> None:
        here = self.shards[shard]
        as_of, known = here.spread.get(queue_id, (-1, 0))
        if envelope.number > as_of:
            values = values_of(envelope)
            self._add(shard, queue_id, known, values["partitions"], values["name"])
            if not values["partitions"]:
                self._drop(here, queue_id)
            here.spread[queue_id] = envelope.number, values["partitions"]

    def _drop(self, here: PlainShard, queue_id: bytes) -> None:
        here.starts = {key: start for key, start in here.starts.items() if key[0] != queue_id}
        here.ends = {key: end for key, end in here.ends.items() if key[0] != queue_id}

    # -- records

    def _append(self, here: PlainShard, key: _Key, envelope: Envelope) -> None:
        header = read_header(envelope.body)
        if header.producer_id >= 0:
            slot = key, header.producer_id
            if here.sequences.get(slot, header.base_sequence) != header.base_sequence:
                return
            here.sequences[slot] = header.base_sequence + header.record_count
        here.ends[key] += header.last_offset_delta + 1  # a batch over lost offsets has no record

    def _trim(self, here: PlainShard, key: _Key, number: int) -> None:
        start = here.ends[key] if number == -1 else number
        if start <= here.ends[key]:
            here.starts[key] = max(here.starts[key], start)

    # -- groups

    def _group(self, here: PlainShard, log_offset: int, envelope: Envelope) -> None:
        values, _ = decode_change(envelope.body)
        known = here.groups.get(values["group"])
        if values["after"] == (-1 if known is None else known.version):
            made = PlainGroup(log_offset, values["kind"], values["members"])
            here.groups[values["group"]] = made

    def _delete_group(self, here: PlainShard, group: str) -> None:
        if group in here.groups and not here.groups[group].members:
            del here.groups[group]
            here.commits = {key: at for key, at in here.commits.items() if key[0] != group}

    def _commit(self, here: PlainShard, log_offset: int, envelope: Envelope) -> None:
        group, _, _, offsets, *_ = CommitOffsets.decode(envelope)
        known = here.groups.get(group)
        if known is not None and known.members:
            return
        reset = known is not None and known.kind != "offsets"
        for one in offsets:
            key = group, bytes(one.queue_id), one.partition
            if reset or not one.deny or one.offset >= here.commits.get(key, 0):
                here.commits[key] = one.offset
                here.groups.setdefault(group, PlainGroup(log_offset))

    def _forget(self, here: PlainShard, envelope: Envelope) -> None:
        group, partitions = DeleteOffsets.decode(envelope)
        for queue_id, index in partitions:
            if self.alive(queue_id):
                self.faults.append("offsets on a queue that is there were forgotten")
            here.commits.pop((group, bytes(queue_id), index), None)
            self.swept += 1
