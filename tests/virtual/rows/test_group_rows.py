"""Rows of members and the body of GROUP: JSON as the first kproxy wrote it, and packed."""

from base64 import b64encode
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.virtual.commands.envelope import Kind, decode
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows.groups import Row, Rows
from tests.commands import command

# A member's row of a consumer group and of a classic one, byte for byte as level 1 has them.
PLAIN = (
    b'\0\0\0\0\0\0\0\x07{"epoch":7,"topics":["a"],"assigned":"AAEC","revoking":"","target":"AAE=",'
    b'"protocols":[["range","/w=="]]}'
)
PLAIN_CLASSIC = b'\0\0\0\0\0\0\0\x03{"epoch":3,"protocols":[],"assignment":"AAE="}'


def member(**more: Any) -> Row:
    return {
        "epoch": 7, "topics": ["a"], "assigned": b"\0\1\2", "revoking": b"", "target": b"\0\1",
        "protocols": [("range", b"\xff")],
    } | more  # fmt: skip


def finished(steps: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value = end.value
            assert isinstance(value, bytes)
            return value


def body(rows: Rows, *, packed: bool) -> bytes:
    values = {"group": "g", "after": 3, "kind": "consumer", "members": 1, "values": {"epoch": 7}}
    return finished(group_rows.encode_change(values, rows, packed=packed))


def test_level_1_is_read_and_written_as_ever() -> None:
    assert group_rows.decode_member(PLAIN) == member()
    assert group_rows.encode_member(member(), packed=False) == PLAIN
    classic = group_rows.decode_member(PLAIN_CLASSIC)
    assert classic == {"epoch": 3, "protocols": [], "assignment": b"\0\1"}
    assert group_rows.encode_member(classic, packed=False) == PLAIN_CLASSIC


blobs = st.binary(max_size=60)


@given(blobs, blobs, blobs, st.lists(st.tuples(st.text(max_size=5), blobs)), st.booleans())
def test_a_row_comes_back(assigned, revoking, target, protocols, packed) -> None:
    for row in (
        member(assigned=assigned, revoking=revoking, target=target, protocols=protocols),
        member(assigned=assigned, target=assigned, topics=["ü\0", ""]),
        {"epoch": -2, "protocols": protocols, "assignment": assigned},
    ):
        data = group_rows.encode_member(row, packed=packed)
        assert group_rows.member_epoch(data) == row["epoch"]
        assert group_rows.decode_member(data) == row


@given(st.dictionaries(st.text(max_size=5), st.none() | blobs), st.booleans())
def test_a_change_comes_back_and_rows_are_put_as_they_are(given_rows, packed) -> None:
    rows: Rows = {
        name: None if blob is None else member(assigned=blob) for name, blob in given_rows.items()
    }
    values, changed = group_rows.decode_change(body(rows, packed=packed))
    assert (values["group"], values["after"], values["values"]) == ("g", 3, {"epoch": 7})
    assert changed == {
        name: None if row is None else group_rows.encode_member(row, packed=packed)
        for name, row in rows.items()
    }


def test_a_group_of_level_1_is_applied_as_it_was() -> None:
    """The body as the first kproxy wrote it gives the row that it gave."""
    row = {"epoch": 7, "topics": ["a"], "assigned": b64encode(b"\0\1\2").decode(), "revoking": "",
           "target": "AAE=", "protocols": [["range", "/w=="]]}  # fmt: skip
    values = {"group": "g", "after": -1, "rows": {"m": row, "n": None}}
    envelope = decode(command(Kind.GROUP, values=values).head()
                      + command(Kind.GROUP, values=values).body)  # fmt: skip
    _, changed = group_rows.decode_change(envelope.body)
    assert changed == {"m": PLAIN, "n": None}


@pytest.mark.parametrize("form", [0, 2, 255])
def test_a_later_form_is_refused(form: int) -> None:
    data = group_rows.encode_member(member(), packed=True)
    with pytest.raises(ValueError, match="this kproxy reads form 1"):
        group_rows.decode_member(data[:8] + bytes([form]) + data[9:])


def test_100_000_partitions_are_2_mb() -> None:
    parts = bytes(20 * 100_000)
    packed = body({"m": member(assigned=parts, target=parts)}, packed=True)
    assert len(packed) < 2_100_000
    assert len(body({"m": member(assigned=parts, target=parts)}, packed=False)) > 5_000_000
    between = body({"m": member(assigned=parts, target=parts[20:], revoking=b"")}, packed=True)
    assert len(between) < 4_100_000
