"""The target of a dead letter that is redriven, and the record that arrives there.

The letter becomes what its record was: without the headers that say why it died, and with one that
counts how often it was redriven. All of it follows from its bytes and the spec.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from kproxy.metadata.redrive_settings import TIMES_MAX_DEFAULT, read_target
from kproxy.metadata.routing import Filter, internal, read_filter
from kproxy.protocol.made_batches import header
from kproxy.protocol.varint import Malformed, read_varlong, uvarint
from kproxy.virtual.folds.redrives import FILTER, TIMES_MAX, TO
from kproxy.virtual.partitioner import name_fault

ORIGIN, TIMES = b"__dlq.errors.topic", b"kproxy.redriven"
MADE_KEY, MADE = b"kproxy.dlq.key", b"made"
"""The letter has a key, and its record had none."""
_OF_LETTERS = (b"__dlq.errors.", b"kproxy.dlq.", TIMES)
"""The beginnings of names of headers that are the letter's own."""
_NO_KEY = b"\x01"
_DIGITS_MAX = 9
_LONG = 0x81
"""The bits that the varint of a short length, 0 to 63, has not."""


class Redrive(NamedTuple):
    """`to`: the queue that letters go to; "": where they came from, if its name begins so."""

    name: str  # the dead-letter queue's
    to: str
    prefix: str
    filter: Filter
    times_max: int

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at."""
        return self.filter.headers | {ORIGIN, TIMES, MADE_KEY}

    def place(
        self, key: bytes | None, body: bytes, headers: Mapping[bytes, bytes | None]
    ) -> tuple[str, bytes, str]:
        """Return (queue, record from its key on, ""), or why it stays. Nothing: it is not meant."""
        if self.filter.conditions and not self.filter.matches(key, headers):
            return "", b"", ""
        queue = self.to
        if not queue:
            queue, sound = _origin(headers.get(ORIGIN))
            if not queue.startswith(self.prefix):
                return "", b"", ""
            if not sound or queue == self.name:
                return "", b"", "it does not say where it is from"
        said = headers.get(TIMES)
        times = _times(said) if said else 0
        if times >= self.times_max:
            return "", b"", f"it was redriven {times} times"
        made = as_it_was(body, headers.get(MADE_KEY) == MADE, _counted(times + 1))
        return (queue, made, "") if made else ("", b"", "it has no copy of its record")


@lru_cache(maxsize=1000)
def _origin(said: bytes | None) -> tuple[str, bool]:
    """Return the name of a queue that a letter says, and whether it may be one."""
    name = (said or b"").decode("ascii", "replace")
    return name, bool(name) and not name_fault(name) and not internal(name)


@lru_cache(maxsize=100)
def _counted(times: int) -> bytes:
    return header(TIMES.decode(), str(times))


def _times(said: bytes) -> int:
    return int(said) if len(said) <= _DIGITS_MAX and said.isdigit() else 0


def as_it_was(body: bytes, keyless: bool, counted: bytes) -> bytes:
    """Return the record of a letter, from its key on; empty: the letter has no copy of it.

    `keyless`: the letter has a key, and the record had none. `counted`: the header in the place of
    those that are the letter's own. Raise Malformed.
    """
    end = len(body)
    first = body[0] if end else _LONG
    size, at = (first >> 1, 1) if not first & _LONG else read_varlong(body, 0, end)
    value_at = at + size if size > 0 else at
    length, at = read_varlong(body, value_at, end)
    if length < 0 and (size < 0 or keyless):
        return b""
    headers_at = at + length if length > 0 else at
    first = body[headers_at] if headers_at < end else _LONG
    count, at = (
        (first >> 1, headers_at + 1) if not first & _LONG else read_varlong(body, headers_at, end)
    )
    if count < 0:
        raise Malformed("a record has fewer headers than none")
    parts, kept, kept_from = list[bytes](), 1, at
    for _ in range(count):
        begin = at
        first = body[at] if at < end else _LONG
        size, name = (first >> 1, at + 1) if not first & _LONG else read_varlong(body, at, end)
        at = name + size
        first = body[at] if at < end else _LONG
        length, at = (first >> 1, at + 1) if not first & _LONG else read_varlong(body, at, end)
        if length > 0:
            at += length
        if size < 0 or at > end:
            raise Malformed("a header is longer than it says")
        if not body.startswith(_OF_LETTERS, name, name + size):
            kept += 1
            continue
        if begin > kept_from:
            parts.append(body[kept_from:begin])
        kept_from = at
    if at > kept_from:
        parts.append(body[kept_from:at])
    front = _NO_KEY + body[value_at:headers_at] if keyless else body[:headers_at]
    return b"".join((front, uvarint(2 * kept), *parts, counted))


def read_redrive(name: str, values: Mapping[str, str]) -> Redrive:
    """Read a redrive from the settings of its queue."""
    to, prefix = read_target(values[TO])
    times = int(values.get(TIMES_MAX, TIMES_MAX_DEFAULT))
    return Redrive(name, to, prefix, read_filter(values.get(FILTER, "")), times)
