"""A group's rows: its head, a member each, and when to look for expired offsets.

A head says which kind of group it is and as of which log offset; a decision taken outside the fold
names that version and is void if it has changed. The fields of a member are its coordinator's; the
fold reads its `epoch` alone. A row, and what GROUP says, is JSON or, with level 2, packed: what
members of many partitions have is bytes, and a GROUP's rows are put as they are. A streams group's
topology lies beside its members, under an id that no member has: it stays while there are none.
"""

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.schema import Keys

NO_VERSION = -1
TOPOLOGY_ROW = ""
"""The member id of the row of a streams group's topology."""
GOING = "going"
"""Set in the values of a group that is being deleted in several steps."""

Row = dict[str, Any]
"""A member. `protocols`: (name, metadata) each; what is in `_BYTES`: bytes, the rest as in JSON."""
Rows = dict[str, Row | None]


class Change(NamedTuple):
    """The contents of a GROUP: the head's values, how many members there are, rows of some."""

    values: dict[str, Any]
    members: int
    rows: Rows


_BYTES = ("assigned", "revoking", "target", "assignment", "epochs")
_PLAIN, _PACKED = ord("{"), 1
_FORM = struct.Struct(">BI")
_EVERY = 32


group_key = Keys(RowKind.GROUP, "T").key
member_key = Keys(RowKind.MEMBER, "NT")
group_due_key = Keys(RowKind.GROUP_DUE, "tT")


member_prefix = member_key.key
group_due_of = group_due_key.parts
"""Return (time in ms, group) of a key of kind GROUP_DUE."""


def group_of_member(key: bytes) -> str:
    group: str = member_key.parts(key)[0]
    return group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group. `kind`: classic, consumer, share, streams, or offsets: it never had members."""

    version: int  # log offset of the last change of its members
    kind: str = "offsets"
    members: int = 0
    empty_since_ms: int = 0
    look_ms: int = 0  # its `e` row's time
    empty_at_last_scan: bool = False
    """Whether no offset was left when it was last looked at, and none was committed since."""
    values: dict[str, Any] = field(default_factory=dict)
    """The values that its coordinator keeps: generation, leader, protocol and the like."""

    @property
    def going(self) -> bool:
        return GOING in self.values

    def encode(self) -> bytes:
        return dumps([getattr(self, name) for name in self.__slots__])


def decode_group(data: bytes) -> GroupRow:
    version, kind, members, empty_since_ms, look_ms, empty_at_last_scan, values = json.loads(data)
    return GroupRow(
        version=version, kind=kind, members=members, empty_since_ms=empty_since_ms,
        look_ms=look_ms, empty_at_last_scan=empty_at_last_scan, values=values,
    )  # fmt: skip


def member_epoch(data: bytes) -> int:
    return int.from_bytes(data[:8], "big", signed=True)


def encode_member(row: Row, *, packed: bool) -> bytes:
    """Encode a member, epoch first: commits ask for that alone. `packed` comes with level 2."""
    epoch = int(row["epoch"]).to_bytes(8, "big", signed=True)
    return epoch + (_packed_row(row) if packed else dumps(_plain(row)))


def decode_member(data: bytes) -> Row:
    if data[8] == _PLAIN:
        return _of_plain(json.loads(data[8:]))
    return _unpacked_row(data)


def _plain(row: Row) -> dict[str, Any]:
    """Return all of it as JSON has it, bytes as base64: the form of level 1."""
    found = {key: _text(value) if key in _BYTES else value for key, value in row.items()}
    found["protocols"] = [[name, _text(metadata)] for name, metadata in row["protocols"]]
    return found


def _of_plain(row: dict[str, Any]) -> Row:
    found = {key: b64decode(value) if key in _BYTES else value for key, value in row.items()}
    found["protocols"] = [(name, b64decode(metadata)) for name, metadata in row["protocols"]]
    return found


def _text(value: bytes) -> str:
    return b64encode(value).decode()


def _packed_row(row: Row) -> bytes:
    fields = {key: value for key, value in row.items() if key not in _BYTES}
    fields["protocols"] = [[name, len(metadata)] for name, metadata in row["protocols"]]
    blobs = [metadata for _, metadata in row["protocols"]]
    lengths = fields["bytes"] = {}
    for key in _BYTES:
        if key == "target" and row.get(key) == row.get("assigned"):
            continue  # said once, as that is how it mostly is
        if key in row:
            lengths[key] = len(row[key])
            blobs.append(row[key])
    return _pack(fields, blobs)


def _unpacked_row(data: bytes) -> Row:
    row, at = _unpack(data, 8)
    lengths = row.pop("bytes")
    protocols = []
    for name, length in row["protocols"]:
        protocols.append((name, data[at : at + length]))
        at += length
    row["protocols"] = protocols
    for key, length in lengths.items():
        row[key] = data[at : at + length]
        at += length
    if "assigned" in row:
        row.setdefault("target", row["assigned"])
    return row


def _pack(fields: dict[str, Any], blobs: Iterable[bytes]) -> bytes:
    """Return a form byte, fields as JSON with its length in front, then the bytes that they
    size."""
    said = dumps(fields)
    return b"".join((_FORM.pack(_PACKED, len(said)), said, *blobs))


def _unpack(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Return (fields, where the rest begins)."""
    form, length = _FORM.unpack_from(data, at)
    if form != _PACKED:
        raise ValueError(f"a group has form {form}; this kproxy reads form {_PACKED}")
    at += _FORM.size
    return json.loads(data[at : at + length]), at + length


# -- the body of a GROUP


def encode_change(
    values: dict[str, Any], rows: Rows, *, packed: bool
) -> Generator[None, None, bytes]:
    """Encode a GROUP; `values`: what it says of the group itself. Rest every few rows."""
    encoded: dict[str, bytes | None] = {}
    for number, (member, row) in enumerate(rows.items(), 1):
        if packed and row is not None:
            encoded[member] = encode_member(row, packed=True)
        if number % _EVERY == 0:
            yield
    if not packed:
        plain = {m: None if row is None else _plain(row) for m, row in rows.items()}
        return dumps({**values, "rows": plain})
    sizes = {m: -1 if row is None else len(encoded[m] or b"") for m, row in rows.items()}
    return _pack({**values, "rows": sizes}, (row for row in encoded.values() if row))


def decode_change(body: bytes) -> tuple[dict[str, Any], dict[str, bytes | None]]:
    """Return (what it says of the group itself, rows by member; None of one that is gone)."""
    rows: dict[str, bytes | None] = {}
    if body[0] == _PLAIN:
        values = json.loads(body.decode())
        for member, row in values["rows"].items():
            epoch = None if row is None else int(row["epoch"]).to_bytes(8, "big", signed=True)
            rows[member] = None if epoch is None else epoch + dumps(row)
        return values, rows
    values, at = _unpack(body, 0)
    for member, size in values["rows"].items():
        rows[member] = body[at : at + size] if size >= 0 else None
        at += max(0, size)
    return values, rows


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
