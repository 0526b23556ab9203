"""Records of a queue: by offset, by time, by key or header; and one record as a whole."""

from collections.abc import Callable
from typing import Any

from click import BadParameter

from kproxy.console.pages import LINES, Asked, BadQuery, Page, link
from kproxy.console.shown import FORMS, SHOWN_BYTES_MAX, Shown, decoded, preview
from kproxy.protocol.records import Body
from kproxy.tools.client import Client, Refused
from kproxy.tools.records.batches import Budget, Looked, Wanted, look
from kproxy.tools.records.offsets import Part, parsed, spans
from kproxy.tools.records.text import Record

_PARTITIONS_MAX = 16
"""The partitions that are looked at together; of others one is named."""
_PREVIEW_BYTES, _KEY_BYTES = 200, 80
_HEADERS_SHOWN, _HEADER_BYTES = 100, 4096
_LATEST = f"-{LINES}"
_HIDDEN = "contents are hidden: records cannot be chosen by what is in them"


def records_page(asked: Asked) -> Page:
    """List records of one partition or of all, from a place on."""
    query, client = asked.query, asked.client
    queue, key, header = (query.text(name) for name in ("queue", "key", "header"))
    if (key or header) and not asked.contents:
        raise BadQuery(_HIDDEN)
    at = query.text("at") or ("start" if key or header else _LATEST)
    form, only = query.choice("form", FORMS), query.number("partition")
    leaders = _leaders(client, queue, only)
    firsts = _firsts(client, dict(list(leaders.items())[:_PARTITIONS_MAX]), at)
    wanted, names = _wanted(key, header)
    budget = Budget()
    looked: dict[Part, Looked] = {}
    for part, first in firsts.items():
        left = LINES - sum(len(one.records) for one in looked.values()) if wanted else LINES
        if left > 0 and (budget.is_left or not looked):
            looked[part] = look(client, part, leaders[part], first, left,
                                wanted=wanted, names=names, budget=budget)  # fmt: skip
        else:
            looked[part] = Looked(first, end=first + 1)
    latest = at.startswith("-")
    found = [record for one in looked.values() for record in one.records]
    found.sort(key=lambda one: (one.timestamp, one.partition, one.offset))
    found = found[-LINES:] if latest else found[:LINES]
    shown = [_line(record, form, asked.contents) for record in found]
    values = {
        "queue": {"name": queue}, "tab": "records", "lines": shown[::-1] if latest else shown,
        "contents": asked.contents, "forms": FORMS, "form": form, "at": query.text("at"),
        "key": key, "header": header, "partition": query.text("partition"),
        "left_out": [line for one in looked.values() for line in one.left_out],
        "partitions": len(leaders), "looked_at": len(firsts),
        "going_on": _going_on(queue, firsts, looked, found, key=key, header=header, form=form),
    }  # fmt: skip
    return Page("records.html", values)


def _leaders(client: Client, queue: str, only: int | None) -> dict[Part, int]:
    """Return the leaders of a queue's partitions, or of one. Raises Refused."""
    parts = client.queue(queue).partitions
    found = {(queue, one.partition_index): one.leader_id for one in parts if one.leader_id >= 0}
    if only is None:
        return dict(sorted(found.items()))
    if (queue, only) not in found:
        raise Refused(f"there is no partition {only} of {queue}, or nobody serves it now")
    return {(queue, only): found[queue, only]}


def _firsts(client: Client, leaders: dict[Part, int], at: str) -> dict[Part, int]:
    """Return the offset to begin at, of each partition. Raises BadQuery."""
    try:
        first, _ = parsed(at)
    except BadParameter:
        raise BadQuery(
            f"{at}: write start, end, an offset, -50 (the last 50) or @2026-11-26T12:00:00Z"
        ) from None
    return {part: span.first for part, span in spans(client, leaders, first, None).items()}


def _wanted(key: str, header: str) -> tuple[Wanted | None, frozenset[bytes]]:
    """Return the rule of records that are asked for, and the headers that it looks at."""
    rules: list[Callable[[Body], bool]] = []
    names: frozenset[bytes] = frozenset()
    if key:
        key_bytes = _bytes(key)
        rules.append(lambda body: body[2] == key_bytes)
    if header:
        text, equals, value = header.partition("=")
        name, value_bytes = text.strip().encode(), _bytes(value.strip())
        names = frozenset((name,))
        if equals:
            rules.append(lambda body: body[4].get(name) == value_bytes)
        else:
            rules.append(lambda body: name in body[4])
    if not rules:
        return None, names
    return lambda body: all(rule(body) for rule in rules), names


def _bytes(text: str) -> bytes:
    """Return the bytes that a text stands for: 0x and digits, or itself in UTF-8."""
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            pass
    return text.encode()


def _going_on(
    queue: str, firsts: dict[Part, int], looked: dict[Part, Looked], found: list[Record],
    **more: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return, of each partition, the links to what is before and after the lines."""
    path, lines = f"/queues/{queue}/records", []
    for part, one in looked.items():
        offsets = [record.offset for record in found if record.partition == part[1]]
        before = min(offsets, default=firsts[part])
        after = max(offsets, default=one.next_offset - 1) + 1
        if len(offsets) == len(one.records):
            after = one.next_offset
        plain = {"partition": part[1], **more}
        earlier = max(one.start, before - LINES)
        filtered = more["key"] or more["header"]
        lines.append({
            "partition": part[1], "next_offset": after, "end": one.end,
            "before": link(path, at=earlier, **plain)
            if one.start < before and not filtered else None,
            "after": link(path, at=after, **plain) if after < one.end else None,
        })  # fmt: skip
    return lines


def _line(record: Record, form: str, contents: bool) -> dict[str, Any]:
    line = {
        "partition": record.partition, "offset": record.offset, "time": record.timestamp,
        "bytes": len(record.value or b""), "headers": len(record.headers),
        "href": link(f"/queues/{record.queue}/record", partition=record.partition,
                     offset=record.offset),
    }  # fmt: skip
    if contents:
        line |= {
            "key": preview(record.key, form, _KEY_BYTES),
            "value": preview(record.value, form, _PREVIEW_BYTES),
        }
    return line


def record_page(asked: Asked) -> Page:
    """Show one record: its key, its headers and its value."""
    query = asked.query
    queue, form = query.text("queue"), query.choice("form", FORMS)
    partition, offset = query.number("partition", 0) or 0, query.number("offset", 0) or 0
    part = queue, partition
    leaders = _leaders(asked.client, queue, partition)
    found = look(asked.client, part, leaders[part], offset, 1)
    if not found.records or found.records[0].offset != offset:
        raise Refused(
            f"there is no record at offset {offset} of {queue}-{partition}: retention, compaction"
            " or an aborted transaction took it, or it is a marker, or is yet to come"
        )
    (record,) = found.records
    values: dict[str, Any] = {
        "queue": {"name": queue}, "tab": "records", "partition": partition, "offset": offset,
        "time": record.timestamp, "contents": asked.contents, "forms": FORMS, "form": form,
        "next_offset": offset + 1 if offset + 1 < found.end else None, "start": found.start,
        "bytes": len(record.value or b""), "most": SHOWN_BYTES_MAX,
    }  # fmt: skip
    if asked.contents:
        values |= {
            "key": decoded(record.key, form, _HEADER_BYTES), "value": decoded(record.value, form),
            "headers": _headers(record, form), "headers_left_out":
            max(0, len(record.headers) - _HEADERS_SHOWN),
        }  # fmt: skip
    return Page("record.html", values)


def _headers(record: Record, form: str) -> list[tuple[str, Shown]]:
    return [
        (name[:_HEADER_BYTES], decoded(value, form, _HEADER_BYTES))
        for name, value in record.headers[:_HEADERS_SHOWN]
    ]
