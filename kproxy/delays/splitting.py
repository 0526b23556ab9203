"""The splitting of batches by when their records are due.

A waiting batch has the time that it is due as its largest timestamp. Records of a client's batch
that are due at many times are put together with those that are due near them: the farther ahead
they are, the wider apart. Such a *mixed* batch is cut again when its first record is due, together
with what others have left then. So no envelope has many batches, and each time that a record is
written again there is a fifth left of what it had to wait, or less.

Runs on a thread where batches are large or packed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kproxy.common.errors import Code
from kproxy.delays.schedules import CRON, EVERY, SCHEDULES, schedule_in
from kproxy.metadata.delay_settings import DELAY_MS, DELIVER_AT, MOST, REPLACE, DelaySettings
from kproxy.metadata.setting import shown
from kproxy.protocol.batch import HEADER_BYTES, BadBatch, BatchHeader, Records, stamped
from kproxy.protocol.made_batches import batch_of_bodies, content_of_body
from kproxy.protocol.records import bodies, header_bytes, headers_in
from kproxy.virtual.commands.delays import BATCHES_MAX, keyed
from kproxy.virtual.rows.delays import digest_of

GROUPS_MAX = 64
"""Batches that wait, of one batch."""
_FEWER = 8
_TOGETHER_MS, _TOGETHER = 20, 4
"""Times lie together that are so far apart, or by this part of what the first has to wait."""
_GROWS = 2
_SIZE_MIN = 256 << 10
_PART_BYTES, _PART_RECORDS = 4 << 20, 100_000
"""The unpacked size of records that wait or are appended as one: below what is looked into."""
_HEAD_BYTES = 16  # bytes of a record, before its key, about
_SIGNS = (b"kproxy.de", EVERY, CRON)  # headers begin so: a batch without them is not read
_SCHEDULE_PART = 4
"""A record of a schedule, which is appended and put aside at once, takes so small a part of the
most that waiting records may have."""
_NUMBER = re.compile(rb"[+-]?\d{1,18}")
_NAMES = SCHEDULES.union((DELIVER_AT, DELAY_MS))
_BLAMED_MAX = 1000
_TOLD_MAX = 3

Piece = tuple[int, bytes]
"""A record's due time, and its bytes from the key on."""


class Split(NamedTuple):
    """A client's batch of which some records wait.

    `now`: what does not wait; empty where nothing is left. `whole`: `later` is all of it as it was.
    `gone`: as in a LATER.
    """

    batch: Records
    now: bytes
    later: list[bytes]
    waiting: int
    whole: bool
    gone: Sequence[tuple[bytes, bool]] | None = None

    @property
    def waits(self) -> bool:
        """Whether anything of it waits, or is to wait no more."""
        return bool(self.later or self.gone)

    @property
    def header_bytes(self) -> bytes:
        """The header, for the check of the sequence, if it is not in the batch that waits."""
        return b"" if self.whole else bytes(self.batch[:HEADER_BYTES])


def may_say(data: bytes) -> bool:
    """Return whether records, unpacked, may have a header that says when they are due."""
    return any(sign in data for sign in _SIGNS)


def split(
    head: BatchHeader, batch: Records, data: bytes, delay: DelaySettings, now_ms: int, most: int
) -> Split | None:
    """Cut a batch by what its records' headers say; None: none of them says anything.

    `data`: its records, unpacked. `most`: bytes, of all that comes of it. Raise BadBatch,
    Malformed.
    """
    if delay.by_key:
        return _split_by_key(head, batch, data, delay, now_ms, most)
    if not may_say(data):
        return None
    dues = _dues(header_bytes(head.record_count, data), delay, now_ms)
    if dues is None:
        return None
    first = dues[0]
    if dues.count(first) == len(dues):
        if first <= now_ms:
            return Split(batch, bytes(batch), [], 0, True)
        return Split(batch, b"", [stamped(batch, first)], len(dues), True)
    ready, pieces = [], []
    found = bodies(head, data, headers=False)
    for due, (_, time_ms, _, body, _) in zip(dues, found, strict=True):
        if due <= now_ms:
            ready.append((body, time_ms))
        else:
            pieces.append((due, body))
    now = batch_of_bodies(ready, head.codec) if ready else b""
    later = grouped(pieces, head.codec, len(batch), most, now_ms)
    return Split(batch, now, later, len(pieces), False)


def _split_by_key(
    head: BatchHeader, batch: Records, data: bytes, delay: DelaySettings, now_ms: int, most: int
) -> Split:
    """Cut a batch into records that each replace the waiting one of their key.

    The last one of each key counts. One without a value cancels what waits, and is nothing itself.
    """
    dues = None
    if delay.by_header and may_say(data):
        dues = _dues(header_bytes(head.record_count, data), delay, now_ms)
    dues = dues or [now_ms + delay.fixed_ms] * head.record_count
    ready: list[Piece] = []
    last: dict[bytes, Piece] = {}
    gone: dict[bytes, bool] = {}
    scheduled: set[bytes] = set()
    for number, (due, record) in enumerate(
        zip(dues, bodies(head, data, headers=SCHEDULES), strict=True)
    ):
        _, time_ms, key, body, headers = record
        scheduled.discard(key or b"")
        if delay.by_header and key is not None and (EVERY in headers or CRON in headers):
            scheduled.add(key)
            due = max(due, now_ms + 1)  # it waits, whatever its first time is
            if len(body) > most // _SCHEDULE_PART:
                told = f"record {number}: a schedule's has {most // _SCHEDULE_PART} bytes at most"
                raise BadBatch(Code.MESSAGE_TOO_LARGE, told, [(number, told)])
        if key is None:
            told = f"record {number}: it has no key, and {REPLACE}=key"
            raise BadBatch(Code.INVALID_RECORD, told, [(number, told)])
        if content_of_body(body).value is None:
            came = last.pop(key, None)  # with this batch
            gone.setdefault(key, came is None)
        elif due > now_ms:
            last.pop(key, None)
            last[key] = due, body
        else:
            last.pop(key, None)
            gone.setdefault(key, False)
            ready.append((time_ms, body))
    if len(last) + len(gone) > BATCHES_MAX:
        told = f"a batch with {REPLACE}=key may have at most {BATCHES_MAX} keys"
        raise BadBatch(Code.MESSAGE_TOO_LARGE, told)
    later = [waiting_by_key(*one, scheduled=key in scheduled) for key, one in last.items()]
    now = (
        batch_of_bodies([(body, time_ms) for time_ms, body in ready], head.codec) if ready else b""
    )
    found = [(digest_of(key), must) for key, must in gone.items()]
    return Split(batch, now, later, len(later), False, found)


def _dues(found: Sequence[bytes], delay: DelaySettings, now_ms: int) -> list[int] | None:
    """Return when each record is due, by its headers as they lie; None if none says so itself.

    Raise BadBatch, Malformed.
    """
    read: dict[bytes, int | str | None] = {}  # many say the same
    dues: list[int] = []
    blamed: list[tuple[int, str]] = []
    other, said, schedules = now_ms + delay.fixed_ms, False, 0
    for number, some in enumerate(found):
        try:
            due = read[some]
        except KeyError:
            schedules += EVERY in some or CRON in some
            if schedules > BATCHES_MAX:
                told = f"a batch may have at most {BATCHES_MAX} schedules"
                raise BadBatch(Code.MESSAGE_TOO_LARGE, told) from None
            due = read[some] = _due(some, delay, now_ms)
            said = said or due is not None
        if due is None:
            dues.append(other)
        elif isinstance(due, str):
            if len(blamed) < _BLAMED_MAX:
                blamed.append((number, due))
        else:
            dues.append(due)
    if blamed:
        told = "; ".join(f"record {number}: {what}" for number, what in blamed[:_TOLD_MAX])
        raise BadBatch(Code.INVALID_RECORD, told, blamed)
    return dues if said else None


def _due(some: bytes, delay: DelaySettings, now_ms: int) -> int | str | None:
    """Return when a record with these headers is due, or what is wrong; None: they do not say."""
    headers = headers_in(some, _NAMES)
    if DELIVER_AT in headers:
        name, from_ms = DELIVER_AT, 0
    elif DELAY_MS in headers:
        name, from_ms = DELAY_MS, now_ms
    elif EVERY in headers or CRON in headers:
        return _first_of(headers, delay, now_ms)
    else:
        return None
    if (EVERY in headers or CRON in headers) and isinstance(
        fault := _first_of(headers, delay, now_ms), str
    ):
        return fault
    value = headers[name] or b""
    told = f"header {name.decode()}={shown(value.decode('utf-8', 'replace'))}"
    if not _NUMBER.fullmatch(value):
        return f"{told}: it must be a whole number of milliseconds"
    due_ms = from_ms + int(value)
    if due_ms > now_ms + delay.max_ms:
        return f"{told}: that is more than {delay.max_ms} ms ahead ({MOST})"
    return max(due_ms, now_ms)


def _first_of(
    headers: Mapping[bytes, bytes | None], delay: DelaySettings, now_ms: int
) -> int | str:
    """Return the first time of a schedule, or what is wrong with it."""
    if not delay.by_key:
        return f"a schedule has a key: it needs {REPLACE}=key"
    try:
        found = schedule_in(headers)
    except ValueError as fault:
        return str(fault)
    due_ms = None if found is None else found.after(now_ms, now_ms)
    if due_ms is None or due_ms > now_ms + delay.max_ms:
        return f"the schedule's next time is more than {delay.max_ms} ms ahead ({MOST})"
    return due_ms


def grouped(pieces: list[Piece], codec: int, size: int, most: int, now_ms: int) -> list[bytes]:
    """Return batches that wait, of these records: one for the times that lie together.

    No more than `GROUPS_MAX`, nor many bytes more than the `size` of what they come from, but of
    records that unpack to much. A mixed one unpacks to half of `most` or less: so it can be cut
    again, however badly its parts are packed. Raise BadBatch: they are larger than `most`.
    """
    pieces.sort(key=_due_of)  # records of one time stay in their order
    enough = min(most, max(_GROWS * size, _SIZE_MIN))
    for groups in (GROUPS_MAX, _FEWER, 1):
        found = [
            some[part.start : part.stop]
            for some in _groups(pieces, groups, now_ms)
            for part in parts([len(body) for _, body in some], most // 2)
        ]
        made = [_waiting(some, codec) for some in found]
        total = sum(map(len, made))
        if len(made) <= BATCHES_MAX and (total <= enough or (groups == 1 and total <= most)):
            return made
    raise BadBatch(
        Code.MESSAGE_TOO_LARGE,
        f"what waits of the batch takes {total} bytes in {len(made)} batches, {most} bytes and"
        f" {BATCHES_MAX} batches are the most",
    )


def _due_of(piece: Piece) -> int:
    return piece[0]


def _groups(pieces: list[Piece], most: int, now_ms: int) -> list[list[Piece]]:
    together: list[list[Piece]] = []
    until_ms = -1
    for piece in pieces:
        due_ms = piece[0]
        if due_ms <= until_ms:
            together[-1].append(piece)
        else:
            until_ms = due_ms + max(_TOGETHER_MS, (due_ms - now_ms) // _TOGETHER)
            together.append([piece])
    if len(together) <= most:
        return together
    step = -(-len(together) // most)
    return [
        [piece for some in together[at : at + step] for piece in some]
        for at in range(0, len(together), step)
    ]


def parts(sizes: Sequence[int], most: int) -> list[range]:
    """Return which records make a batch, of records with so many unpacked bytes; `most`: in one."""
    most = min(most, _PART_BYTES)
    if len(sizes) <= _PART_RECORDS and sum(sizes) + _HEAD_BYTES * len(sizes) <= most:
        return [range(len(sizes))]
    found, begin, filled = [], 0, 0
    for number, size in enumerate(sizes):
        if number > begin and (
            filled + size + _HEAD_BYTES > most or number - begin >= _PART_RECORDS
        ):
            found.append(range(begin, number))
            begin, filled = number, 0
        filled += size + _HEAD_BYTES
    return [*found, range(begin, len(sizes))]


def waiting_by_key(due_ms: int, body: bytes, *, scheduled: bool) -> bytes:
    """Return the batch of one record that replaces others of its key."""
    return keyed(_waiting([(due_ms, body)], 0), scheduled=scheduled)


def _waiting(pieces: list[Piece], codec: int) -> bytes:
    first_ms, last_ms = pieces[0][0], pieces[-1][0]
    records = [(body, due_ms) for due_ms, body in pieces]
    return batch_of_bodies(records, codec, first_ms, mixed=first_ms != last_ms)
