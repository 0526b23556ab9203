"""What a stretch of a source's records becomes: batches for queues, by shards and parts.

All of it follows from the records, the route's epochs and constants. So another owner that ships
the same cut again makes the same parts, whatever was trimmed or compacted meanwhile: a queue's name
alone decides the shard and the part that its batch is in.

Runs on a thread, in time that grows with the records that are read.
"""

from typing import NamedTuple

import orjson

from kproxy.metadata.routing import Filter, Template, read_configs, read_filter, read_template
from kproxy.protocol.batch import BatchHeader
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, content_of_body, header
from kproxy.protocol.records import Body, bodies, unpacked, without_producer
from kproxy.protocol.varint import Malformed
from kproxy.virtual.partitioner import hash_of
from kproxy.virtual.route_fold import CONFIGS, FILTER, TO, UNROUTABLE
from kproxy.virtual.route_rows import PARTS_MAX, Epoch
from kproxy.virtual.rows import compacts

CUT_BYTES = 768 << 10
"""Of one cut, for one shard: with what frames it, below what a log takes in one record."""
_FRAMED_MAX = 4
"""What frames short records of many targets makes a cut so much larger, at most."""
SHIP_FRAME_BYTES = 4096
"""What a record may take to its queue besides itself: so much less than the log does an entrance
take in one batch."""
CUT_TARGETS = 8000
"""Of one cut, for one shard."""
PART_TARGETS = 500
"""In one part. Names fall into parts by their hashes, which a peer can choose."""
UNPACKED_MAX = 16 << 20
"""What a batch may unpack to; one that holds more goes to the unroutable ones as it is."""
RECORD_MAX = 8 << 20
"""Of a larger record only its key and its headers go there."""
PACKED_FROM = 64 << 10
"""A batch of so many bytes is packed as its source was."""
_TARGET_BYTES = 100  # about what a batch takes beside its records
_INTERNAL = "__"


class Spec(NamedTuple):
    """Where records go, from the text that an epoch has."""

    name: str  # of the definer
    template: Template | None
    filter: Filter | None
    unroutable: str
    configs: dict[str, str]

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at."""
        which = self.template or self.filter
        return frozenset() if which is None else which.headers


NOWHERE = Spec("", None, None, "", {})


def read_spec(text: bytes) -> Spec:
    """Raises ValueError for what a later kproxy has written."""
    if not text:
        return NOWHERE
    values = orjson.loads(text)
    if values.get(TO):
        configs = read_configs(values.get(CONFIGS, ""))
        template = read_template(values[TO])
        name = values["name"]
        return Spec(name, template, None, values.get(UNROUTABLE) or f"{name}.unroutable", configs)
    return Spec(values["name"], None, read_filter(values.get(FILTER, "")), "", {})


Piece = tuple[bytes, int, int]
"""A record from its key on, its time in ms, and the codec that it came in."""


class Gathered:
    """What of a stretch goes where: pieces by queue, by shard."""

    def __init__(self, shards: int, start: int, log_bytes_max: int) -> None:
        self.shards = shards
        self._bytes_max = min(CUT_BYTES, log_bytes_max // _FRAMED_MAX)
        self.by_shard: list[dict[str, list[Piece]]] = [{} for _ in range(shards)]
        self.whole: tuple[str, bytes] | None = None
        """A batch that goes to a queue as it is: alone."""
        self.sizes = [0] * shards
        self._buckets = [[0] * PARTS_MAX for _ in range(shards)]
        """How many targets there are by shard, in as many parts as there may be."""
        self.through = start
        """The offset behind the last record that is in it, or passed over."""
        self.targets_max = CUT_TARGETS
        """In each shard."""
        self.records = 0
        self.unroutable = 0
        self.full = False
        self.spec = NOWHERE
        """Of the first epoch: all of it is of one."""

    @property
    def parts(self) -> int:
        """In how many parts each shard gets it: a power of two."""
        parts, buckets = PARTS_MAX, self._buckets
        while parts > 1:
            half = parts // 2
            buckets = [[one[n] + one[n + half] for n in range(half)] for one in buckets]
            if max(map(max, buckets)) > PART_TARGETS:
                break
            parts = half
        return parts

    def add(self, name: str, piece: Piece, *, limited: bool) -> bool:
        """Whether there is room for a record. The first one always has."""
        bucket, index = divmod(hash_of(name), self.shards)
        targets = self.by_shard[index]
        found = targets.get(name)
        size = self.sizes[index] + len(piece[0]) + (_TARGET_BYTES if found is None else 0)
        if limited and self.records and size > self._bytes_max:
            return False
        if found is None:
            buckets, bucket = self._buckets[index], bucket % PARTS_MAX
            if limited and (buckets[bucket] >= PART_TARGETS or len(targets) >= self.targets_max):
                return False
            buckets[bucket] += 1
            targets[name] = [piece]
        else:
            found.append(piece)
        self.sizes[index] = size
        self.records += 1
        return True

    def add_whole(self, name: str, data: bytes, *, limited: bool) -> bool:
        """As `add`, of a batch as it is: alone, for it may be large."""
        if limited and self.records:
            return False
        self.whole = name, data
        self.records += 1
        self.full = True
        return True


class Cutter:
    """Gathers what one source partition passes on in one epoch, batch by batch."""

    def __init__(
        self, epoch: Epoch, shards: int, start: int, end: int, index: int, *,
        limited: bool, log_bytes_max: int,
    ) -> None:  # fmt: skip
        """Of offsets from `start` to before `end`. `index`: of the source partition.

        `log_bytes_max`: what the log takes in one record.

        `limited`: it ends where a cut is large enough; else what is cut already is made again.
        """
        self._start, self._end, self._index = start, end, index
        self._limited = limited
        self.gathered = Gathered(shards, start, log_bytes_max)
        self.gathered.spec = self._spec = spec = read_spec(epoch.spec)
        self._keyed = compacts(spec.configs)

    def take(self, base_offset: int, head: BatchHeader, found: list[Body] | bytes) -> bool:
        """Take the records of a batch, or one whose records cannot be told; whether there is room.

        Those that were passed over by an earlier cut are passed over.
        """
        gathered = self.gathered
        if isinstance(found, bytes):
            return self._take_whole(base_offset, head, found)
        start, end, codec = self._start, self._end, head.codec
        # Not kept in `self`: a bound method there is a reference cycle, for each cut.
        place = self._by_filter if self._spec.template is None else self._by_template
        for record in found:
            offset = base_offset + record[0]
            if offset < start:
                continue
            if offset >= end:
                gathered.through = end
                return False
            if not place(record, offset, codec):
                gathered.through, gathered.full = offset, True
                return False
        gathered.through = min(end, base_offset + head.last_offset_delta + 1)
        return True

    def _by_filter(self, record: Body, offset: int, codec: int) -> bool:
        spec = self._spec
        _, time_ms, key, body, headers = record
        if spec.filter is None or not spec.filter.matches(key, headers):
            return True
        return self.gathered.add(spec.name, (body, time_ms, codec), limited=self._limited)

    def _by_template(self, record: Body, offset: int, codec: int) -> bool:
        spec, gathered = self._spec, self.gathered
        _, time_ms, key, body, headers = record
        assert spec.template is not None
        name, why = spec.template.fill(key, headers)
        if why is None and (name == spec.name or name.startswith(_INTERNAL)):
            why = f"{name} is not a queue that a route may go to"
        if why is None and key is None and self._keyed:
            why = "no key, and its queue is compacted: there it would be dropped"
        if why is None and len(body) > RECORD_MAX:
            why = f"the record has more than {RECORD_MAX} bytes"
        if why is None:
            return gathered.add(name, (body, time_ms, codec), limited=self._limited)
        said = [
            header("kproxy.route.error", why),
            header("kproxy.route.partition", str(self._index)),
            header("kproxy.route.offset", str(offset)),
        ]
        content = content_of_body(body)
        if len(body) > RECORD_MAX:
            content = Content(content.key, None, content.headers, content.header_bytes)
        gathered.unroutable += 1
        piece = body_of(content, said), time_ms, codec
        return gathered.add(spec.unroutable, piece, limited=self._limited)

    def _take_whole(self, base_offset: int, head: BatchHeader, data: bytes) -> bool:
        """A batch whose records cannot be told; a filter matches nothing of it."""
        gathered, behind = self.gathered, base_offset + head.last_offset_delta + 1
        if self._spec.template is not None:
            if not gathered.add_whole(self._spec.unroutable, data, limited=self._limited):
                gathered.through, gathered.full = max(self._start, base_offset), True
                return False
            gathered.unroutable += head.record_count
        gathered.through = min(self._end, behind)
        return not gathered.full


def records_of(
    head: BatchHeader, data: bytes, *, headers: bool | frozenset[bytes]
) -> list[Body] | bytes:
    """The records of a stored batch; where they cannot be told the batch, of no producer."""
    try:
        return bodies(head, unpacked(data, UNPACKED_MAX), headers=headers)
    except Malformed:
        return without_producer(head, data)


Parts = list[tuple[int, int, list[tuple[str, bytes]]]]
"""(shard, part, [(queue, its batch)])."""


def parts_of(gathered: Gathered, parts: int) -> Parts:
    """What is shipped, in as many parts for each shard as the cut has; empty ones are not."""
    shards = gathered.shards
    made: dict[tuple[int, int], list[tuple[str, bytes]]] = {}
    for index, targets in enumerate(gathered.by_shard):
        for name, pieces in targets.items():
            part = hash_of(name) // shards % parts if parts > 1 else 0
            made.setdefault((index, part), []).append((name, _batch(pieces)))
    if gathered.whole is not None:
        bucket, index = divmod(hash_of(gathered.whole[0]), shards)
        made[index, bucket % parts] = [gathered.whole]
    return [(*key, batches) for key, batches in sorted(made.items())]


def _batch(pieces: list[Piece]) -> bytes:
    size = sum([len(piece[0]) for piece in pieces]) if len(pieces) > 1 else len(pieces[0][0])
    codec = pieces[0][2] if size >= PACKED_FROM else 0
    return batch_of_bodies([piece[:2] for piece in pieces], codec)
