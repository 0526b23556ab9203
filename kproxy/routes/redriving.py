"""The target of a dead letter that is redriven, and the record that arrives there.

The letter becomes what its record was: without the headers that say why it died, and with one that
counts how often it was redriven. All of it follows from its bytes and the spec.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from kproxy.metadata.redrive_settings import TIMES_MAX_DEFAULT, read_target
from kproxy.metadata.routing import Filter, internal, read_filter
from kproxy.protocol.made_batches import Content, body_of, content_of_body, header
from kproxy.protocol.varint import Malformed, read_varlong
from kproxy.virtual.folds.redrives import FILTER, TIMES_MAX, TO
from kproxy.virtual.partitioner import name_fault

ORIGIN, TIMES = b"__dlq.errors.topic", b"kproxy.redriven"
MADE_KEY, MADE = b"kproxy.dlq.key", b"made"
"""The letter has a key, and its record had none."""
_OF_LETTERS = (b"__dlq.errors.", b"kproxy.dlq.", TIMES)
"""The beginnings of names of headers that are the letter's own."""
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
        if not self.filter.matches(key, headers):
            return "", b"", ""
        queue = self.to
        if not queue:
            queue, sound = _origin(headers.get(ORIGIN))
            if not queue.startswith(self.prefix):
                return "", b"", ""
            if not sound or queue == self.name:
                return "", b"", "it does not say where it is from"
        times = _times(headers.get(TIMES))
        if times >= self.times_max:
            return "", b"", f"it was redriven {times} times"
        content = content_of_body(body)
        if headers.get(MADE_KEY) == MADE:
            content = content._replace(key=None)
        if content.key is None and content.value is None:
            return "", b"", "it has no copy of its record"
        return queue, body_of(without_own(content), (_counted(times + 1),)), ""


@lru_cache(maxsize=1000)
def _origin(said: bytes | None) -> tuple[str, bool]:
    """Return the name of a queue that a letter says, and whether it may be one."""
    name = (said or b"").decode("ascii", "replace")
    return name, bool(name) and not name_fault(name) and not internal(name)


@lru_cache(maxsize=100)
def _counted(times: int) -> bytes:
    return header(TIMES.decode(), str(times))


def _times(said: bytes | None) -> int:
    if said and len(said) <= _DIGITS_MAX and said.isdigit():
        return int(said)
    return 0


def without_own(content: Content) -> Content:
    """Return a record without the headers that are the letter's own. Raise Malformed."""
    data, at, kept = content.header_bytes, 0, list[bytes]()
    end = len(data)
    for _ in range(content.headers):
        begin = at
        first = data[at] if at < end else _LONG
        size, name = (first >> 1, at + 1) if not first & _LONG else read_varlong(data, at, end)
        at = name + size
        first = data[at] if at < end else _LONG
        length, at = (first >> 1, at + 1) if not first & _LONG else read_varlong(data, at, end)
        if length > 0:
            at += length
        if size < 0 or at > end:
            raise Malformed("a header is longer than it says")
        if not data.startswith(_OF_LETTERS, name, name + size):
            kept.append(data[begin:at])
    return content._replace(headers=len(kept), header_bytes=b"".join(kept))


def read_redrive(name: str, values: Mapping[str, str]) -> Redrive:
    """Read a redrive from the settings of its queue."""
    to, prefix = read_target(values[TO])
    times = int(values.get(TIMES_MAX, TIMES_MAX_DEFAULT))
    return Redrive(name, to, prefix, read_filter(values.get(FILTER, "")), times)
