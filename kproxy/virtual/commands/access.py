"""The command that changes rows of security."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.levels import SECURITY_FROM
from kproxy.virtual.rows.kinds import RowKind


@of_kind(
    Kind.SECURE,
    DiskUse.ALWAYS,  # what somebody may do no more does not wait for disk
    by_items,
    level=SECURITY_FROM,
    publishes=(RowKind.SECURED,),
    answered_across_workers=True,
)
class Secure(NamedTuple):
    """Rows by name are put, or with None dropped: all of them, in one step."""

    changes: Mapping[str, dict[str, Any] | None]

    def envelope(self) -> Envelope:
        return Envelope(Kind.SECURE, body=orjson.dumps({"changes": self.changes}))

    @staticmethod
    def decode(envelope: Envelope) -> "Secure":
        return Secure(orjson.loads(envelope.body)["changes"])
