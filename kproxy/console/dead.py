"""Dead letters: the queues that hold them, why they died, and their way back to work."""

from typing import Any
from urllib.parse import quote

from kproxy.console.pages import LINES, Asked, BadQuery, Page, Query, link, walked
from kproxy.console.shown import preview as shown
from kproxy.tools.client import Client
from kproxy.tools.records.letters import KINDS, PREFIX, Letter, dead_queues, preview, sample
from kproxy.tools.records.redrives import (
    FILTER,
    ORIGIN,
    RATE,
    TIMES_MAX,
    Redrive,
    begin,
    change,
    some_redrives,
    standing,
)

_SAMPLES = (2_000, 100_000)
"""The letters that are counted, and those that are where more are asked for."""
_KINDS = [*zip(("cause", "group", "origin"), ("Cause", "Group", "From queue"), KINDS, strict=True)]
_VALUE_BYTES, _KEY_BYTES = 200, 80
_CHANGES = {"pause": "paused", "resume": "resumed", "stop": "stopped"}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_HIDDEN = "contents are hidden: letters cannot be chosen by what is in them"


def dead_page(asked: Asked) -> Page:
    """List the queues that take dead letters."""
    return Page("dead.html", walked(asked, "/dead", dead_queues, PREFIX))


def jobs_page(asked: Asked) -> Page:
    """List redrives with how far each is."""
    values = walked(asked, "/jobs", some_redrives, PREFIX)
    values["lines"] = [(name, _progress(redrive)) for name, redrive in values["lines"]]
    return Page("jobs.html", values)


def letters_page(asked: Asked) -> Page:
    """Show the newest letters of a queue, what they died of, and its redrive."""
    query, client = asked.query, asked.client
    queue, many = query.text("queue"), bool(query.text("more"))
    only = {name: query.text(name) for name, _, _ in _KINDS if query.text(name)}
    if only and not asked.contents:
        raise BadQuery(_HIDDEN)
    wanted = {header: only[name] for name, _, header in _KINDS if name in only}
    found = sample(client, queue, _SAMPLES[many], LINES, wanted)
    values = {
        "queue": {"name": queue}, "contents": asked.contents, "only": only, "sample": found,
        "counts": _counts(queue, found.counts) if asked.contents else [],
        "lines": [_line(one, asked.contents) for one in found.letters],
        "more": link(f"/dead/{queue}", more="1", **only)
        if not many and found.counted < found.total else None,
        **_form(query, client, queue),
    }  # fmt: skip
    return Page("letters.html", values)


def _form(query: Query, client: Client, queue: str) -> dict[str, Any]:
    """Return the fields of a redrive, and the redrive that there is."""
    redrive = standing(client, queue)
    fields = {name: query.text(name) for name in ("to", "match", "rate", "times")}
    return {"redrive": redrive and _progress(redrive), "form": fields}


def _counts(
    queue: str, counts: dict[str, list[tuple[str, int]]]
) -> list[tuple[str, list[tuple[str, int, str, str]]]]:
    """Return, of each kind, its values: how often, a link to those letters, and one to redrive
    them.
    """
    lines = []
    for name, title, header in _KINDS:
        lines.append((title, [
            (value, number, link(f"/dead/{queue}", **{name: value}),
             link(f"/dead/{queue}", match=_condition(header, value)) + "#redrive")
            for value, number in counts[header]
        ]))  # fmt: skip
    return lines


def _condition(header: str, value: str) -> str:
    return f"header:{header}:{quote(value, safe='')}" if value else f"!header:{header}"


def _line(letter: Letter, contents: bool) -> dict[str, Any]:
    record = letter.record
    line: dict[str, Any] = {
        "partition": record.partition, "offset": record.offset, "time": record.timestamp,
        "href": link(f"/queues/{record.queue}/record", partition=record.partition,
                     offset=record.offset),
    }  # fmt: skip
    if contents:
        line |= {
            "letter": letter, "key": shown(record.key, "auto", _KEY_BYTES),
            "value": shown(record.value, "auto", _VALUE_BYTES),
            "origin": _origin(letter),
        }  # fmt: skip
    return line


def _origin(letter: Letter) -> str | None:
    """Return the address of the record that a letter says it was; None: it says none."""
    if not letter.origin or not (letter.origin_partition + letter.origin_offset).isdecimal():
        return None
    path = f"/queues/{quote(letter.origin, safe='')}/records"
    return link(path, partition=letter.origin_partition, at=letter.origin_offset)


def _progress(redrive: Redrive) -> dict[str, Any]:
    """Return how far a redrive is, and the seconds that its rate still takes."""
    told = redrive.is_told
    number, _, per = redrive.rate.partition("/")
    seconds = None
    if told and number.isdigit() and per in _SECONDS and redrive.state == "running":
        seconds = round(redrive.left * _SECONDS[per] / max(1, int(number)))
    return {
        "to": redrive.to, "state": redrive.state, "filter": redrive.filter, "rate": redrive.rate,
        "job": redrive.job, "most": redrive.most if told else None, "waits": redrive.waits,
        "done": redrive.most - redrive.left if told else None, "left": redrive.left,
        "seconds": seconds,
    }  # fmt: skip


# -- a redrive: what would go, and then the order


def preview_page(asked: Asked) -> Page:
    """Show what a redrive would take."""
    queue = asked.query.text("queue")
    target, given = _order(asked)
    found = preview(asked.client, queue, target, given)
    values = {
        "queue": {"name": queue}, "found": found, "contents": asked.contents, "target": target,
        "targets": found.targets.most_common(LINES), "stays": found.stays.most_common(),
        "fields": {name: asked.query.text(name) for name in ("to", "match", "rate", "times")},
        "lines": [
            {"partition": one.partition, "offset": one.offset, "time": one.timestamp,
             "key": shown(one.key, "auto", _KEY_BYTES) if asked.contents else None,
             "value": shown(one.value, "auto", _VALUE_BYTES) if asked.contents else None}
            for one in found.some
        ],
    }  # fmt: skip
    return Page("preview.html", values)


def begin_redrive(asked: Asked) -> str:
    """Begin a redrive."""
    queue = asked.query.text("queue")
    target, given = _order(asked)
    begin(asked.client, queue, target, given, dry=False)
    return link(f"/dead/{queue}", done="begun", refresh="5")


def change_redrive(asked: Asked) -> str:
    """Pause, resume or stop a redrive, or change its rate."""
    query = asked.query
    queue, rate = query.text("queue"), query.text("rate").strip()
    what = query.choice("what", ("", *_CHANGES))
    if not what and not rate:
        raise BadQuery("give a rate, as in 50/s")
    change(asked.client, queue, what or None, None if what else rate)
    return link(f"/dead/{queue}", done=_CHANGES.get(what, "rate"))


def _order(asked: Asked) -> tuple[str, dict[str, str | None]]:
    """Return where letters go, and the settings that say which and how fast. Raises BadQuery."""
    query = asked.query
    match, times = query.text("match").strip(), query.number("times")
    if match and not asked.contents:
        raise BadQuery(_HIDDEN)
    given = {
        FILTER: match or None, RATE: query.text("rate").strip() or None,
        TIMES_MAX: None if times is None else str(times),
    }  # fmt: skip
    return query.text("to").strip() or ORIGIN, given
