"""A group's rows: its head (`g`), a member each (`u`), and when to look for expired offsets (`e`).

A head says which kind of group it is and as of which log offset; a decision taken outside the fold
names that version and is void if it has changed. What coordinators keep of a member is theirs; the
fold reads its `epoch` alone.
"""

import json
from dataclasses import dataclass, field
from typing import Any

NO_VERSION = -1


def group_key(group: str) -> bytes:
    return b"g" + group.encode()


def member_key(group: str, member: str) -> bytes:
    return member_prefix(group) + member.encode()


def member_prefix(group: str) -> bytes:
    name = group.encode()
    return b"u" + len(name).to_bytes(2, "big") + name


def group_of_member(key: bytes) -> str:
    return key[3 : 3 + int.from_bytes(key[1:3], "big")].decode()


def look_key(time_ms: int, group: str) -> bytes:
    return b"e" + max(0, time_ms).to_bytes(8, "big") + group.encode()


def look_of(key: bytes) -> tuple[int, str]:
    """(time in ms, group) of a key of kind `e`."""
    return int.from_bytes(key[1:9], "big"), key[9:].decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A group. `kind`: classic, consumer, or offsets where it never had members."""

    version: int  # log offset of the last change of its members
    kind: str = "offsets"
    members: int = 0
    empty_since_ms: int = 0
    look_ms: int = 0  # its `e` row's time
    spent: bool = (
        False  # no offset was left when it was last looked at, and none was committed since
    )
    values: dict[str, Any] = field(default_factory=dict)
    """What its coordinator keeps: generation, leader, protocol and the like."""

    def encode(self) -> bytes:
        return dumps(
            [
                self.version,
                self.kind,
                self.members,
                self.empty_since_ms,
                self.look_ms,
                self.spent,
                self.values,
            ]
        )


def decode_head(data: bytes) -> Head:
    version, kind, members, empty_since_ms, look_ms, spent, values = json.loads(data)
    return Head(
        version=version,
        kind=kind,
        members=members,
        empty_since_ms=empty_since_ms,
        look_ms=look_ms,
        spent=spent,
        values=values,
    )


def member_epoch(data: bytes) -> int:
    return int.from_bytes(data[:8], "big", signed=True)


def encode_member(row: dict[str, Any]) -> bytes:
    """Its epoch comes first: a commit asks for that alone."""
    return int(row["epoch"]).to_bytes(8, "big", signed=True) + dumps(row)


def decode_member(data: bytes) -> dict[str, Any]:
    row = json.loads(data[8:])
    assert isinstance(row, dict)
    return row


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
