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


def test_retired_words_are_gone() -> None:
    words = re.compile(r"\b(" + "|".join(RETIRED) + r")\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in sorted((ROOT / "kproxy").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := words.search(line))
    ]
    assert not found, "\n".join(found)
