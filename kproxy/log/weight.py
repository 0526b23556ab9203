"""The cost of applying an envelope, estimated from the envelope alone.

The unit is one append, about 10 µs. A turn of the loop applies at most `TURN` units.
"""

from collections.abc import Callable

from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.traits import TRAITS, TURN, by_items

__all__ = ["TURN", "weight"]

_WEIGHTS: dict[int, Callable[[Envelope], int]] = {
    kind: traits.weight for kind, traits in TRAITS.items()
}


def weight(envelope: Envelope) -> int:
    """Return the units of one envelope; never less than 1."""
    return _WEIGHTS.get(envelope.kind, by_items)(envelope)
