"""Mistakes of a rebuild that go wrong with any kind of row or command."""

from collections.abc import Callable
from typing import Any

import pytest

from kproxy.shard.copier import Live
from kproxy.virtual import reindex
from kproxy.virtual import state as state_module
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows.kinds import PUBLISHED_BYTES, RowKind

Mistake = Callable[[pytest.MonkeyPatch], None]


def unpublished(kind: RowKind) -> Mistake:
    """Leave out rows of this kind when rows are published."""
    return lambda patch: patch.setattr(
        state_module, "PUBLISHED_BYTES", PUBLISHED_BYTES - {kind.byte}
    )


def uncounted(kind: Kind) -> Mistake:
    """Pass over the batches of such commands in a rebuild."""
    kinds = tuple(one for one in reindex._CARRYING if one != kind)
    return lambda patch: patch.setattr(reindex, "_CARRYING", kinds)


def not_copied(kind: Kind) -> Mistake:
    """Drop the batches of such commands when live ones are copied forward."""
    copies = Live.copies

    def dropped(self: Live, log_offset: int, envelope: Envelope, location: Any) -> Any:
        if envelope.kind == kind:
            return iter(())
        return copies(self, log_offset, envelope, location)

    return lambda patch: patch.setattr(Live, "copies", dropped)
