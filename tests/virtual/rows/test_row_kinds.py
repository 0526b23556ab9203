"""One schema for rows: letters are fixed for ever, and stand nowhere else."""

import re

import pytest

from kproxy.virtual.rows.kinds import INDEX_BYTES, PUBLISHED_BYTES, CatalogueRow, RowKind
from tests.harness import ROOT

ON_DISK = {
    "QUEUE": b"q", "NAME": b"i", "PARTITION": b"p", "PRODUCER": b"k", "BATCH": b"b", "OFFSET": b"o",
    "OFFSET_BY_QUEUE": b"r", "GROUP": b"g", "MEMBER": b"u", "GROUP_DUE": b"e",
    "RETENTION_DUE": b"c", "RETENTION_ENTRY": b"n", "RETENTION_MARKS": b"5",
    "SWEEP_QUEUE": b"x", "SWEEP_PARTITION": b"y",
    "LIVE_BYTES": b"s", "COUNTS": b"F", "CHECKPOINT": b"m", "TERM": b"K",
    "PENDING_ASSIGNMENT": b"w",
    "ASSIGNMENT": b"h", "NO_EFFECT": b"v", "ANNOUNCE": b"a", "UNPUBLISHED": b"d",
    "REBUILD_COUNTER": b"t", "COMPARE": b"j", "COMPACTION": b"z", "TRANSACTION": b"T",
    "TRANSACTIONAL_ID": b"B", "PARTICIPANT": b"U", "TRANSACTION_DUE": b"D",
    "TRANSACTION_IDLE": b"I",
    "TRANSACTIONAL_PRODUCER": b"J", "PRODUCER_DUE": b"H", "OPEN_TRANSACTION": b"f",
    "OPEN_FIRST": b"l", "ABORTED": b"A", "OPEN_GROUP": b"G", "PENDING_OFFSET": b"O",
    "PENDING_BY_PARTITION": b"Q", "PENDING_COUNT": b"N",
    "GROUP_CONFIG": b"E",
    "SHARE_PARTITION": b"S", "SHARE_STATES": b"C", "SHARE_QUEUE": b"R", "DEAD_LETTER": b"L",
    "FORWARDED": b"M", "FORWARD_TARGET": b"W",
    "ROUTE": b"P", "ROUTE_DEFINITION": b"X", "ROUTE_LANDED": b"V", "RESTORED": b"9",
    "WAITING": b"Y", "DELAY": b"Z", "DELAY_DUE": b"0", "DELAY_ENTRY": b"1", "SECURED": b"2",
    "PRODUCERS_DUE": b"4", "WRITER": b"#", "HELD_LANE": b"3",
    "IDLE_DUE": b"6", "IDLE": b"7", "WAITING_KEY": b"8", "JOB": b"!",
}  # fmt: skip


def test_letters_are_those_on_disk() -> None:
    assert {name: bytes(kind) for name, kind in RowKind.__members__.items()} == ON_DISK


@pytest.mark.parametrize("kinds", [RowKind, CatalogueRow])
def test_no_letter_has_two_meanings(kinds: type[RowKind] | type[CatalogueRow]) -> None:
    assert len(kinds) == len(kinds.__members__)
    for kind in kinds:
        start, end = kind.range()
        assert kind.of(start)
        assert not kind.of(end)
        assert [other for other in kinds if start <= other.letter < end] == [kind]


def test_published_rows_and_index_rows() -> None:
    published = b"qpkoxvhwguKzTBUJflAGONESCRLMWPXVZ923#!"
    assert bytes(sorted(PUBLISHED_BYTES)) == bytes(sorted(published))
    assert bytes(sorted(INDEX_BYTES)) == bytes(sorted(b"cexyDIHLP046"))


def test_letters_and_slices_of_keys_stand_in_the_row_modules_alone() -> None:
    named = {  # first bytes of records, not of rows
        '_OUTCOME_RECORD = b"o"', "record.key[:1] == CALL", "key[:HEAD_BYTES]",
    }  # fmt: skip
    raw = re.compile(r'b"[a-zA-Z]"|ord\("[a-zA-Z]"\)|\bkey\[-?\d*:')
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("virtual", "shard", "cluster", "metadata", "groups", "handlers", "log")
        for path in sorted((ROOT / "kproxy" / folder).rglob("*.py"))
        if path.parent.name != "rows"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if raw.search(line) and not any(name in line for name in named)
    ]
    assert not found, "\n".join(found)
