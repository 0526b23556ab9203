"""What all logs of a cluster say, as plainly as possible: queues, their ends, committed offsets."""

from dataclasses import dataclass, field

from kproxy.protocol.batch import read_header
from kproxy.virtual.bodies import decode_commit, decode_forget
from kproxy.virtual.envelope import Envelope, Kind
from kproxy.virtual.partitioner import shard_of


@dataclass
class PlainQueue:
    queue_id: bytes
    partitions: int
    configs: dict[str, str]


@dataclass
class PlainShard:
    ends: dict[tuple[bytes, int], int] = field(default_factory=dict)
    spread: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # as of, partitions
    commits: dict[tuple[str, bytes, int], int] = field(default_factory=dict)


class Plain:
    """Takes in envelopes as they land, in whatever log."""

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
        key = (queue_id, envelope.partition)
        match envelope.kind:
            case Kind.CREATE:
                values = envelope.values()
                if values["name"] not in self.names:
                    self.names[values["name"]] = PlainQueue(queue_id, 0, dict(values["configs"]))
                    self.ever[queue_id] = values["name"]
                    self._grow(shard, queue_id, values["partitions"])
            case Kind.GROW if self.alive(queue_id):
                self._grow(shard, queue_id, envelope.number)
            case Kind.CONFIGURE if self.alive(queue_id):
                self.names[self.ever[queue_id]].configs |= envelope.values()["set"]
            case Kind.DELETE if self.alive(queue_id):
                del self.names[self.ever[queue_id]]
                self._drop(here, queue_id)
            case Kind.SPREAD:
                self._spread(shard, queue_id, envelope)
            case Kind.APPEND if key in here.ends:
                here.ends[key] += read_header(envelope.body).record_count
            case Kind.COMMIT:
                group, _, _, offsets = decode_commit(envelope.body)
                for one in offsets:
                    here.commits[group, bytes(one.queue_id), one.partition] = one.offset
            case Kind.FORGET:
                self._forget(here, envelope)

    def _grow(self, shard: int, queue_id: bytes, wanted: int) -> None:
        queue = self.names[self.ever[queue_id]]
        self._add(shard, queue_id, queue.partitions, wanted)
        queue.partitions = max(queue.partitions, wanted)

    def _add(self, shard: int, queue_id: bytes, first: int, wanted: int, name: str = "") -> None:
        for index in range(first, wanted):
            if shard_of(name or self.ever[queue_id], self.count, index) == shard:
                self.shards[shard].ends[queue_id, index] = 0

    def _spread(self, shard: int, queue_id: bytes, envelope: Envelope) -> None:
        here = self.shards[shard]
        as_of, known = here.spread.get(queue_id, (-1, 0))
        if envelope.number > as_of:
            values = envelope.values()
            self._add(shard, queue_id, known, values["partitions"], values["name"])
            if not values["partitions"]:
                self._drop(here, queue_id)
            here.spread[queue_id] = envelope.number, values["partitions"]

    def _drop(self, here: PlainShard, queue_id: bytes) -> None:
        here.ends = {key: end for key, end in here.ends.items() if key[0] != queue_id}

    def _forget(self, here: PlainShard, envelope: Envelope) -> None:
        group, partitions = decode_forget(envelope.body)
        for queue_id, index in partitions:
            if self.alive(queue_id):
                self.faults.append("offsets on a queue that is there were forgotten")
            here.commits.pop((group, bytes(queue_id), index), None)
            self.swept += 1
