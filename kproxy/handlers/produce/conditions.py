"""The appends on a condition: a record says in a header where its partition must end before it.

It is for one writer of a partition: a second one, that does not know of the first one's records, is
refused with INVALID_RECORD and the end in the message. The fold decides, in the order of the log.
A batch is taken or refused as a whole. The header of its first record is enough; where several
have one, they must fit together.

Only batches for queues with `kproxy.append.if=header` are looked into: nothing in a batch's header
says what headers its records have, and all other queues are not to pay for a look.
"""

import re
from typing import NamedTuple

from kproxy.common.errors import Code
from kproxy.metadata.setting import shown
from kproxy.protocol.batch import BadBatch, BatchHeader, Records
from kproxy.protocol.records import header_bytes, headers_in
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.records import IF_END, AppendIf
from kproxy.virtual.types import PartitionKey

_NAME = IF_END.encode()
_NAMES = frozenset((_NAME,))
_NUMBER = re.compile(rb"\d{1,18}")


class Conditional(NamedTuple):
    """A batch, and the end that its partition must have."""

    batch: Records
    end: int

    def envelope(self, key: PartitionKey, look_ms: int, time_ms: int) -> Envelope:
        body = AppendIf.body(self.batch, self.end)
        return Envelope(Kind.APPEND_IF, *key, number=look_ms, time_ms=time_ms, body=body)


def condition(batch: Records, head: BatchHeader, data: bytes) -> Conditional | None:
    """Return a batch with its condition; None: it has none. `data`: its records, unpacked.

    Raise BadBatch, Malformed.
    """
    if _NAME not in data:
        return None
    end: int | None = None
    for number, some in enumerate(header_bytes(head.record_count, data)):
        headers = headers_in(some, _NAMES)
        if _NAME not in headers:
            continue
        value = headers[_NAME] or b""
        if not _NUMBER.fullmatch(value):
            raise _bad(number, value, "it must be an offset")
        asked = int(value) - number
        if asked < 0 or (end is not None and asked != end):
            before = f" where record 0 is at {end}" if end is not None else ""
            raise _bad(number, value, f"it cannot be record {number} of its batch{before}")
        end = asked
    return None if end is None else Conditional(batch, end)


def _bad(number: int, value: bytes, what: str) -> BadBatch:
    told = f"header {IF_END}={shown(value.decode('utf-8', 'replace'))}: {what}"
    return BadBatch(Code.INVALID_RECORD, f"record {number}: {told}", [(number, told)])
