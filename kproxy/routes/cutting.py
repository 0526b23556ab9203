"""The batches that a stretch of a source's records becomes, for queues, by shards and parts.

All of it follows from the records, the route's epochs and constants. So another owner that ships
the same cut again makes the same parts, whatever was trimmed or compacted meanwhile: a queue's name
alone decides the shard and the part that its batch is in.

Runs on a thread, in time that grows with the records that are read.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kproxy.native import Bounds
from kproxy.protocol.codecs import Unfit
from kproxy.protocol.made_batches import Content, body_of, content_of_body, fitted, header
from kproxy.protocol.record_runs import RECORD_BYTES_MAX
from kproxy.protocol.records import Body
from kproxy.routes.batch_reading import Reading
from kproxy.routes.redrive_pace import ANY_NUMBER
from kproxy.routes.specs import NOWHERE, read_spec
from kproxy.virtual.partitioner import hash_of
from kproxy.virtual.rows.queues import compacts
from kproxy.virtual.rows.routes import PARTS_MAX, Epoch

if TYPE_CHECKING:
    from kproxy import _core

CUT_BYTES = 768 << 10
"""The bytes of one cut, for one shard: with its frames, below what a log takes in one record."""
_FRAMED_MAX = 4
"""The most that the frames of short records for many targets enlarge a cut."""
SHIP_FRAME_BYTES = 4096
"""The bytes that a record may take to its queue besides itself: an entrance takes so much less in
one batch than the log does."""
CUT_TARGETS = 8000
"""The targets of one cut, for one shard."""
PART_TARGETS = 500
"""The targets in one part. Names fall into parts by their hashes, which a peer can choose."""
RECORD_MAX = 8 << 20
"""The largest record that is passed on whole. A larger one leaves only its key and its headers
to the unroutable ones. Produce refuses it."""
PACKED_FROM = 1 << 10
"""A batch of so many bytes is packed as its source was: to a third or less of them, as a rule."""
_TARGET_BYTES = 100  # about what a batch takes beside its records
_PIECE_BYTES = 150  # bytes that a record takes in memory beside its own
HELD_BYTES_MAX = 16 << 20
"""The bytes that one cut holds, over all shards."""
_INTERNAL = "__"
_NO_KEY = "no key, and its queue is compacted: there it would be dropped"
_EMPTY = body_of(Content(), ())


Piece = tuple[bytes, int, int]
"""A record from its key on, its time in ms, and the codec that it came in."""


class Gathered:
    """The pieces of a stretch, by queue, by shard."""

    def __init__(
        self, shards: int, start: int, log_bytes_max: int, held_max: int = HELD_BYTES_MAX
    ) -> None:
        """Begin a cut; `held_max`: the bytes that it may take in memory, over all shards."""
        self.shards = shards
        self.held_max = held_max
        self.native: _core.Cut | None = None
        """All of it, where the native lane has gathered it."""
        self.held = 0
        """The bytes that it takes in memory, about."""
        self.bytes_max = min(CUT_BYTES, log_bytes_max // _FRAMED_MAX)
        self.batch_bytes_max = log_bytes_max - min(SHIP_FRAME_BYTES, log_bytes_max // 2)
        """The bytes that a batch may have, so that the log takes it."""
        self.by_shard: list[dict[str, list[Piece]]] = [{} for _ in range(shards)]
        self.whole: tuple[str, bytes] | None = None
        """A batch that goes to a queue as it is: alone."""
        self.sizes = [0] * shards
        self._buckets = [[0] * PARTS_MAX for _ in range(shards)]
        """The number of targets by shard, in as many parts as there may be."""
        self.through = start
        """The offset behind the last record that is in it, or passed over."""
        self.targets_max = CUT_TARGETS
        """The most targets in each shard."""
        self.records_max = ANY_NUMBER
        """The most records, as a rate says."""
        self.records = 0
        self.unroutable = 0
        self.passed_over = 0
        """Records that a filter could not look at, or that no log takes."""
        self.why = ""
        """The reason why the last of them was passed over, for people."""
        self.full = False
        self.spec = NOWHERE
        """The spec of the first epoch: all of it is of one."""

    @property
    def parts(self) -> int:
        """The number of parts that each shard gets it in: a power of two."""
        if self.native is not None:
            return self.native.parts
        parts, buckets = PARTS_MAX, self._buckets
        while parts > 1:
            half = parts // 2
            buckets = [[one[n] + one[n + half] for n in range(half)] for one in buckets]
            if max(map(max, buckets)) > PART_TARGETS:
                break
            parts = half
        return parts

    def add(self, name: str, piece: Piece, *, limited: bool) -> bool:
        """Add a record and return whether there is room for it. The first one always has."""
        bucket, index = divmod(hash_of(name), self.shards)
        targets = self.by_shard[index]
        found = targets.get(name)
        size = self.sizes[index] + len(piece[0]) + (_TARGET_BYTES if found is None else 0)
        if (
            limited
            and self.records
            and (
                size > self.bytes_max
                or self.held > self.held_max
                or self.records >= self.records_max
            )
        ):
            return False
        if found is None:
            buckets, bucket = self._buckets[index], bucket % PARTS_MAX
            if limited and (buckets[bucket] >= PART_TARGETS or len(targets) >= self.targets_max):
                return False
            buckets[bucket] += 1
            targets[name] = [piece]
        else:
            found.append(piece)
        self.held += size - self.sizes[index] + _PIECE_BYTES
        self.sizes[index] = size
        self.records += 1
        return True

    def take_cut(self, cut: "_core.Cut", through: int) -> None:
        """Take what the native lane has gathered. `through`: where what it looked at ends."""
        self.native, self.records, self.held = cut, cut.records, cut.held
        self.through = through if cut.through is None else cut.through

    def pass_over(self, records: int, why: str) -> None:
        self.passed_over += records
        self.why = why

    def add_whole(self, name: str, data: bytes, *, limited: bool) -> bool:
        """Add a whole batch as `add` does: alone, for it may be large."""
        if limited and self.records:
            return False
        self.whole = name, data
        self.held += len(data)
        self.records += 1
        self.full = True
        return True


class Cutter:
    """A collector of what one source partition passes on in one epoch, batch by batch."""

    def __init__(
        self, epoch: Epoch, shards: int, start: int, end: int, index: int, *,
        limited: bool, log_bytes_max: int, held_max: int = HELD_BYTES_MAX,
        is_compacted: Callable[[str], bool] = lambda name: False,
    ) -> None:  # fmt: skip
        """Cut offsets from `start` to before `end`. `index`: of the source partition.

        `log_bytes_max`: what the log takes in one record. `held_max`: what the cut may take in
        memory.

        `limited`: it ends where a cut is large enough; else what is cut already is made again.

        `is_compacted`: whether the queue of this name drops records without a key. It is asked of a
        queue to which all goes in one part: of any other it would decide in which part a record is.
        """
        self.start, self._end, self._index = start, end, index
        self.epoch = epoch
        self._limited = limited
        self.gathered = Gathered(shards, start, log_bytes_max, held_max)
        self.gathered.spec = self._spec = spec = read_spec(epoch.spec)
        self._keyed = compacts(spec.configs)
        one = spec.unroutable if spec.template else spec.name
        self._drops_keyless = is_compacted(spec.redrive.to if spec.redrive is not None else one)
        """Whether the filter's queue, the unroutable one or the one that a redrive goes to drops
        records without a key."""
        self._sure_bytes = self.gathered.batch_bytes_max - _TARGET_BYTES
        """A shorter record fits into the log, however it is packed."""

    @property
    def bounds(self) -> Bounds:
        """The bounds of a cut by a template, for the native lane."""
        gathered = self.gathered
        most = (
            gathered.bytes_max, gathered.batch_bytes_max, gathered.held_max, gathered.targets_max,
            gathered.records_max, PART_TARGETS, PARTS_MAX,
        )  # fmt: skip
        return Bounds(gathered.shards, self.start, self._end, self._limited, self._keyed, most)

    def take(self, batch: Reading) -> bool:
        """Take the records of a batch that are not read yet; whether there is room.

        Records that an earlier cut took are passed over.
        """
        while True:
            if not self._take_run(batch):
                return False
            if batch.behind >= self._end:  # batches behind it may not even be sound
                self.gathered.through = self._end
                return batch.behind >= batch.end
            if not batch.read_on():
                break
        if batch.fault:
            return self._take_whole(batch)
        self.gathered.through = min(self._end, batch.end)
        return True

    def _take_run(self, batch: Reading) -> bool:
        gathered, base_offset = self.gathered, batch.base_offset
        start, end, codec = self.start, self._end, batch.head.codec
        # Not kept in `self`: a bound method there is a reference cycle, for each cut.
        place = self._by_filter if self._spec.only else self._by_template
        if self._spec.redrive is not None:
            place = self._by_redrive
        for record in batch.run:
            offset = base_offset + record[0]
            if offset < start:
                continue
            if offset >= end:
                gathered.through = end
                return False
            if not place(record, offset, codec):
                gathered.through, gathered.full = offset, True
                return False
        return True

    def _by_filter(self, record: Body, offset: int, codec: int) -> bool:
        spec = self._spec
        _, time_ms, key, body, headers = record
        if not body:
            self.gathered.pass_over(1, f"record {offset} has more than {RECORD_BYTES_MAX} bytes")
            return True
        if spec.filter is None or not spec.filter.matches(key, headers):
            return True
        if key is None and self._drops_keyless:
            self.gathered.pass_over(1, f"record {offset} has {_NO_KEY}")
            return True
        return self._add(spec.name, (body, time_ms, codec), offset)

    def _by_redrive(self, record: Body, offset: int, codec: int) -> bool:
        _, time_ms, key, body, headers = record
        assert self._spec.redrive is not None
        if not body:
            self.gathered.pass_over(1, f"record {offset} has more than {RECORD_BYTES_MAX} bytes")
            return True
        name, made, why = self._spec.redrive.place(key, body, headers)
        if why:
            self.gathered.pass_over(1, f"record {offset}: {why}")
        if not name:
            return True
        if self._drops_keyless and content_of_body(made).key is None:
            self.gathered.pass_over(1, f"record {offset} has {_NO_KEY}")
            return True
        return self._add(name, (made, time_ms, codec), offset)

    def _add(self, name: str, piece: Piece, offset: int) -> bool:
        """Add as `Gathered.add` does; pass over a record that no log takes."""
        if len(piece[0]) >= self._sure_bytes and (why := self._unfit(piece)):
            self.gathered.pass_over(1, f"record {offset}: {why}")
            return True
        return self.gathered.add(name, piece, limited=self._limited)

    def _unfit(self, piece: Piece) -> str:
        """Return why the log does not take a record; empty: it does."""
        try:
            batch_of([piece], self.gathered.batch_bytes_max)
        except Unfit as error:
            return str(error)
        return ""

    def _by_template(self, record: Body, offset: int, codec: int) -> bool:
        spec, gathered = self._spec, self.gathered
        _, time_ms, key, body, headers = record
        assert spec.template is not None
        name, why = spec.template.fill(key, headers)
        if why is None and (name == spec.name or name.startswith(_INTERNAL)):
            why = f"{name} is not a queue that a route may go to"
        if why is None and key is None and self._keyed:
            why = _NO_KEY
        if not body:
            why, body = f"the record has more than {RECORD_BYTES_MAX} bytes", _EMPTY
        elif why is None and len(body) > RECORD_MAX:
            why = f"the record has more than {RECORD_MAX} bytes"
        bare = len(body) > RECORD_MAX
        if len(body) >= self._sure_bytes and (unfit := self._unfit((body, time_ms, codec))):
            why, bare = why or unfit, True
        if why is None:
            return gathered.add(name, (body, time_ms, codec), limited=self._limited)
        content = content_of_body(body)
        if bare:
            content = Content(content.key, None, content.headers, content.header_bytes)
        gathered.unroutable += 1
        return self._add(
            spec.unroutable, (self._said(content, why, offset), time_ms, codec), offset
        )

    def _said(self, content: Content, why: str, offset: int) -> bytes:
        """Return a record of the unroutable queue: it says why it is there, and where from."""
        said = [
            header("kproxy.route.error", why),
            header("kproxy.route.partition", str(self._index)),
            header("kproxy.route.offset", str(offset)),
        ]
        if content.key is None and self._drops_keyless:
            made = f"{self._spec.name}/{self._index}/{offset}"
            content = content._replace(key=made.encode())
            said.append(header("kproxy.route.key", "made"))
        return body_of(content, said)

    def _take_whole(self, batch: Reading) -> bool:
        """Take a batch of which no more records can be told; a filter passes over what is left.

        If some were told the batch is the value of one unroutable record: as a batch it would bring
        those once more.
        """
        gathered, left = self.gathered, batch.head.record_count - batch.told
        unroutable = self._spec.unroutable
        if self._spec.template is not None:
            if batch.told:
                why = f"{left} records from here on cannot be told: {batch.fault}"
                piece = self._said(Content(None, batch.stored), why, batch.behind)
                taken = self._add(unroutable, (piece, batch.head.max_timestamp, 0), batch.behind)
            else:
                taken = gathered.add_whole(unroutable, batch.whole, limited=self._limited)
            if not taken:
                gathered.through, gathered.full = max(self.start, batch.behind), True
                return False
            gathered.unroutable += left
        else:
            gathered.pass_over(
                left, f"records from {batch.behind} on cannot be told: {batch.fault}"
            )
        gathered.through = min(self._end, batch.end)
        return not gathered.full


def batch_of(pieces: list[Piece], most: int) -> bytes:
    """Make a batch. Raise Unfit: the log does not take it. A cut of more than one record has no
    such batch."""
    size = sum([len(piece[0]) for piece in pieces]) if len(pieces) > 1 else len(pieces[0][0])
    codec = pieces[0][2] if size >= PACKED_FROM else 0
    return fitted([piece[:2] for piece in pieces], codec, most)
