"""The cost of applying an envelope, estimated from the envelope alone.

The unit is one append, about 10 µs. A turn of the loop applies a fixed number of units.
"""

import re

from kproxy.virtual.envelope import Envelope, Kind

TURN = 1000
"""Most units applied in one turn of the loop; what is heavier by itself goes alone."""
_ROWS = 2  # partitions made in one unit
_ITEM_BYTES = 60  # of a command that lists offsets or members: about one in a unit
_PARTITIONS = re.compile(rb'"partitions": ?(\d{1,9})')
_MAKING = frozenset({Kind.CREATE, Kind.SPREAD})
_UNKNOWN = frozenset({Kind.DELETE, Kind.CONFIGURE, Kind.DELETE_GROUP})
"""Change as many rows as a queue has partitions, or a group offsets: only the state knows."""


def weight(envelope: Envelope) -> int:
    """Units of one envelope; never less than 1."""
    kind, body = envelope.kind, envelope.body
    if kind in (Kind.APPEND, Kind.COPY):
        return 1
    if kind in _UNKNOWN:
        return TURN
    if kind in _MAKING:
        found = _PARTITIONS.search(body)
        partitions = int(found[1]) if found else 0
        # None left: a queue that is gone.
        return 1 + partitions // _ROWS if partitions or kind == Kind.CREATE else TURN
    if kind == Kind.GROW:
        return 1 + envelope.number // _ROWS
    return 1 + len(body) // _ITEM_BYTES
