"""Names that were retired for the field's own do not come back."""

import re

from tests.harness import ROOT

RETIRED = (
    "Aftermath", "Appending", "AwayNodes", "Decisions", "DiskRoom", "FORGET", "FORGET_SPREAD",
    "Freshness", "Head", "Holder", "House", "Interest", "Keeper", "LANDED", "LEFT_FOR_NOW",
    "Looks", "Making", "Onlooker", "QueueCache", "Reach", "Rereading", "SPREAD", "VOID", "Wish",
    "aftermath", "copied_place", "decode_head", "due_key", "go_on_without", "leave_for_now",
    "look_key", "mixed_groups", "of_instance", "owning", "pressed", "read_whole", "settle_one",
    "spread_key", "take_in", "take_out", "turn_key", "void_key", "wall_clock_ms", "work_key",
)  # fmt: skip


PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""The parts of a name in snake case or in camel case."""
LEFT = frozenset({
    "FORGET_LANDED", "FORGET_PRODUCERS", "NOTHING_LANDED", "ROUTE_LANDED", "_FORGET_FORWARDED_MAX",
    "_FORGET_LOOK_S",
    "_FORGET_MAX", "_FORGET_MS", "_LANDED", "_due_key", "_wall_clock_ms",
    "group_due_key",
    "producers_due_key", "retention_due_key", "transaction_due_key",
})  # fmt: skip
"""Names that still have a retired word in them. The set only shrinks."""


def _retired(names: set[str]) -> dict[str, str]:
    """Return the names with a retired word in them, and the word."""
    starts: dict[str, list[tuple[list[str], str]]] = {}
    for word in RETIRED:
        parts = PARTS.findall(word)
        starts.setdefault(parts[0], []).append((parts, word))
    found = {}
    for name in names:
        parts = PARTS.findall(name)
        for at, part in enumerate(parts):
            for wanted, word in starts.get(part, ()):
                if parts[at : at + len(wanted)] == wanted:
                    found[name] = word
    return found


def test_retired_words_are_gone() -> None:
    names: dict[str, str] = {}
    for path in sorted((ROOT / "kproxy").rglob("*.py")):
        for name in re.findall(r"[A-Za-z_]\w*", path.read_text()):
            names.setdefault(name, str(path.relative_to(ROOT)))
    found = _retired(set(names))
    new = found.keys() - LEFT
    assert not new, "\n".join(f"{names[name]}: {name}: {found[name]}" for name in sorted(new))
    assert found.keys() >= LEFT, f"no longer there, to be taken out: {LEFT - found.keys()}"


def test_parts_of_names_are_seen() -> None:
    names = {"aftermath_waits", "QueueCaches", "KeeperOfLogs", "a_due_key", "overdue_key", "heads"}
    assert _retired(names).keys() == {"aftermath_waits", "KeeperOfLogs", "a_due_key"}
