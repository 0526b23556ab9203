"""The letters of a dead-letter queue by cause, origin and group; for `kproxy letters`.

No setting: DescribeConfigs of a queue carries it, as how its routes stand. The newest records of a
partition are looked at, on a thread, and the answer says how many that were and where the next
ones are: a count of all letters is several such looks.
"""

import json
import re
from collections import Counter
from itertools import islice
from typing import NamedTuple

from anyio import to_thread

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import ConfigNeeds
from kproxy.protocol.batch import read_header
from kproxy.protocol.record_runs import body_runs
from kproxy.protocol.varint import Malformed
from kproxy.security.acls import Op
from kproxy.shard.shard import Shard
from kproxy.store.damage import DamagedBatch
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.types import PartitionKey
from kproxy.worker.request import Request

LETTERS = "kproxy.state.letters:"
"""The prefix of a partition and an offset, as in `0:4711`: records before it; `0:` for the end."""
_PLACE = re.compile("([0-9]{1,9}):([0-9]{0,18})")
_OFFSETS_MAX = 10_000
_BYTES = 4 << 20
"""The stored records of one look, but for one batch, which may have more."""
_ROWS_AT_ONCE = 500
_KINDS_MAX = 100
_SHOWN = 249
"""The characters of a header's value that are told."""
_WHOSE = (b"kproxy.dlq.cause", b"__dlq.errors.topic", b"__dlq.errors.group")
_HEADERS = frozenset(_WHOSE)


class Looked(NamedTuple):
    """The records that were looked at: how many by (cause, queue, group), and the oldest time.

    `others`: those of more kinds than are told; `unread`: batches that are damaged.
    """

    kinds: Counter[tuple[str, ...]]
    records: int
    since_ms: int
    others: int
    unread: int


async def letters_of(worker: ConfigNeeds, request: Request, queue: str, name: str) -> str:
    """Return how many letters there are of each kind, as JSON. Require READ: it is in their
    headers. Raise KafkaError.
    """
    if not request.permits.topic(Op.READ, queue):
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
    place = _PLACE.fullmatch(name.removeprefix(LETTERS))
    if place is None:
        raise KafkaError(Code.INVALID_REQUEST, f"{name} is no place")
    index, before = place.groups()
    _, key, shard = worker.partition(queue, int(index))
    await request.budget.rest()
    row = shard.state.partition(key)
    start, end = (0, 0) if row is None else (row.log_start, row.last_stable)
    end = min(end, int(before)) if before else end
    stored = await _newest(request, shard, key, max(start, end - _OFFSETS_MAX), end)
    first = stored[0][0] - stored[0][1].last_delta if stored else max(start, end - _OFFSETS_MAX)
    try:
        with shard.segments.pinned({batch.segment for _, batch in stored}):
            looked = await to_thread.run_sync(
                _looked, shard.segments, stored, limiter=worker.delays.readers
            )
    except (OSError, EOFError) as error:
        raise KafkaError(Code.KAFKA_STORAGE_ERROR, str(error)) from error
    letters = [
        {"cause": cause, "queue": origin, "group": group, "letters": count}
        for (cause, origin, group), count in looked.kinds.most_common()
    ]
    return json.dumps({
        "letters": letters, "others": looked.others, "unread": looked.unread,
        "looked": looked.records, "since_ms": looked.since_ms, "all": max(0, end - start),
        "next": first if first > start else None,
    })  # fmt: skip


async def _newest(
    request: Request, shard: Shard, key: PartitionKey, start: int, end: int
) -> list[tuple[int, Batch]]:
    """Return the last batches before an offset, as many as are looked at, by last offset."""
    found: list[tuple[int, Batch]] = []
    while some := list(islice(shard.state.batches(key, start, end), _ROWS_AT_ONCE)):
        found += some
        start = some[-1][0] + 1
        await request.budget.step()
    size, first = 0, len(found)
    while first and (first == len(found) or size + found[first - 1][1].length <= _BYTES):
        first -= 1
        size += found[first][1].length
    return found[first:]


def _looked(segments: Segments, stored: list[tuple[int, Batch]]) -> Looked:
    kinds: Counter[tuple[str, ...]] = Counter()
    records, since_ms, others, unread = 0, -1, 0, 0
    for _, batch in stored:
        try:
            data = bytes(segments.batch(batch.segment, batch.position, batch.length) or b"")
            head = read_header(data)
            if head.is_control:
                continue
            for run in body_runs(head, data, headers=_HEADERS):
                records += len(run)
                since_ms = min(since_ms if since_ms >= 0 else run[0][1], *(one[1] for one in run))
                for *_, headers in run:
                    kind = tuple(_text(headers.get(name)) for name in _WHOSE)
                    if kind in kinds or len(kinds) < _KINDS_MAX:
                        kinds[kind] += 1
                    else:
                        others += 1
        except (Malformed, DamagedBatch):
            unread += 1
    return Looked(kinds, records, since_ms, others, unread)


def _text(value: bytes | None) -> str:
    return (value or b"")[: 4 * _SHOWN].decode(errors="replace")[:_SHOWN]
