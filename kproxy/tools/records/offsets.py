"""Offsets to read from and to, as `kproxy consume --offset` is given them."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import click

from kproxy.tools.client import Client
from kproxy.tools.records.times import moment

_START, _END = -2, -1
"""The timestamps by which ListOffsets is asked for the start and the end."""
Part = tuple[str, int]
_RANGE = re.compile(r"([^:@]*):([^:@]*)|(@.+):(@.+)")
_FORM = "start, end, an offset, -N (the last N), @TIME, or START:END of two of them"


class Place(NamedTuple):
    """A place in each partition: an offset, one counted from the end, or a time."""

    kind: str
    number: int = 0


class Span(NamedTuple):
    """A stretch of a partition: from `first` on, up to `end` at most. `now`: where it ended."""

    first: int
    now: int
    end: int | None


def parsed(text: str) -> tuple[Place, Place | None]:
    """Return where to begin, and where to end if that is said. Raises BadParameter."""
    if found := _RANGE.fullmatch(text):
        first, last = (found[1], found[2]) if found[3] is None else (found[3], found[4])
        return _place(first or "start", text), _place(last, text) if last else None
    return _place(text, text), None


def _place(text: str, whole: str) -> Place:
    if text in ("start", "end"):
        return Place(text)
    if len(text) > 1 and text[0] == "@":
        return Place("time", moment(None, None, text[1:]) or 0)
    if re.fullmatch(r"\d{1,18}", text):
        return Place("offset", int(text))
    if re.fullmatch(r"-\d{1,18}", text):
        return Place("last", -int(text))
    raise click.BadParameter(f"--offset {whole}: write {_FORM}")


def spans(
    client: Client, leaders: dict[Part, int], first: Place, end: Place | None
) -> dict[Part, Span]:
    """Return what to read of each partition that has a leader."""
    starts, ends = client.offsets(leaders, _START), client.offsets(leaders, _END)
    found = {}
    begins = _resolved(client, leaders, first, starts, ends)
    stops = begins if end is None else _resolved(client, leaders, end, starts, ends)
    for part in starts.keys() & ends.keys():
        stop = None if end is None else stops[part]
        found[part] = Span(min(max(starts[part], begins[part]), ends[part]), ends[part], stop)
    return found


def _resolved(
    client: Client, leaders: dict[Part, int], place: Place, starts: Mapping[Part, int],
    ends: Mapping[Part, int],
) -> dict[Part, int]:  # fmt: skip
    if place.kind == "start":
        return dict(starts)
    if place.kind == "offset":
        return dict.fromkeys(leaders, place.number)
    if place.kind == "time":
        at = client.offsets(leaders, place.number)
        return {part: at[part] if at.get(part, -1) >= 0 else end for part, end in ends.items()}
    return {part: max(0, end - place.number) for part, end in ends.items()}  # end is the last 0
