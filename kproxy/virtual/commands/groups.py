"""Commands of groups, as their coordinators decide."""

from collections.abc import Generator
from typing import Any, NamedTuple

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind, turn
from kproxy.virtual.levels import BINARY_FROM, OLDEST
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows.groups import Rows
from kproxy.virtual.rows.kinds import RowKind


@of_kind(
    Kind.GROUP, DiskUse.MODEST, by_items, level=OLDEST, publishes=(RowKind.GROUP, RowKind.MEMBER)
)
class ChangeGroup(NamedTuple):
    """A group as its coordinator decided it; without effect if the group is not `after` any more.

    `rows`: members that changed, as the fold puts them; None: one that left.
    """

    group: str
    after: int
    group_kind: str
    members: int
    values: dict[str, Any]
    rows: dict[str, bytes | None]
    time_ms: int = 0

    @staticmethod
    def encode(
        group: str,
        after: int,
        group_kind: str,
        members: int,
        values: dict[str, Any],
        rows: Rows,
        *,
        level: int,
        time_ms: int,
    ) -> Generator[None, None, Envelope]:
        """Yield the envelope, from members as their coordinator has them. Rest every few rows."""
        said = {
            "group": group,
            "after": after,
            "kind": group_kind,
            "members": members,
            "values": values,
        }
        packed = level >= BINARY_FROM
        body = yield from group_rows.encode_change(said, rows, packed=packed)
        return Envelope(Kind.GROUP, time_ms=time_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "ChangeGroup":
        values, rows = group_rows.decode_change(bytes(envelope.body))
        return ChangeGroup(
            values["group"], values["after"], values["kind"], values["members"], values["values"],
            rows, envelope.time_ms,
        )  # fmt: skip


@of_kind(
    Kind.DELETE_GROUP, DiskUse.ALWAYS, turn, level=OLDEST,
    publishes=(RowKind.GROUP, RowKind.MEMBER, RowKind.OFFSET), json="group",
)  # fmt: skip
class DeleteGroup(Command):
    """An empty group goes, with its offsets."""

    group: str
