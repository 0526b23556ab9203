"""Records that a user writes, sends again or copies, and waiting ones that it cancels."""

from typing import Any

from kproxy.console.pages import Asked, BadQuery, Page, link
from kproxy.tools.client import Refused
from kproxy.tools.records.batches import look
from kproxy.tools.records.send import body_with, send
from kproxy.tools.records.waiting import cancel_waiting

_FORM_CHARACTERS_MAX = 256 << 10
_KINDS = ("text", "hex")


def produce_page(asked: Asked) -> Page:
    """Show the form of a new record."""
    queue = asked.query.text("queue")
    values = {
        "queue": {"name": queue}, "tab": "produce", "kinds": _KINDS,
        "partitions": len(asked.client.queue(queue).partitions),
    }  # fmt: skip
    return Page("produce.html", values)


def produce(asked: Asked) -> str:
    """Write a record that a form describes."""
    query = asked.query
    queue, kind = query.text("queue"), query.choice("kind", _KINDS)
    text = query.text("value", most=_FORM_CHARACTERS_MAX)
    value = None if query.text("null") else _bytes(text, kind)
    key = _bytes(query.text("key"), kind) if query.text("key") else None
    headers = []
    for line in query.text("headers", most=_FORM_CHARACTERS_MAX).splitlines():
        name, colon, rest = line.partition(":")
        if not line.strip():
            continue
        if not colon:
            raise BadQuery(f"{line}: write a header as name: value")
        headers.append((name.strip(), rest.strip().encode()))
    body = body_with(key, value, headers)
    return _written(queue, send(asked.client, queue, body, key, query.number("partition")))


def _bytes(text: str, kind: str) -> bytes:
    if kind == "text":
        return text.encode()
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BadQuery("hexadecimal digits come in pairs: 00 ff 2a") from None


def copy(asked: Asked) -> str:
    """Write a record again, with its key, value and headers, to its queue or another."""
    query, client = asked.query, asked.client
    queue, partition, offset = (
        query.text("queue"),
        query.number("partition"),
        query.number("offset"),
    )
    if partition is None or offset is None:
        raise BadQuery("a record has a partition and an offset")
    leader = client.leaders([queue]).get((queue, partition), -1)
    if leader < 0:
        raise Refused(f"there is no partition {partition} of {queue}, or nobody serves it now")
    found = look(client, (queue, partition), leader, offset, 1)
    if not found.records or found.records[0].offset != offset:
        raise Refused(f"there is no record at offset {offset} of {queue}-{partition}")
    target = query.text("target") or queue
    return _written(target, send(client, target, found.bodies[0], found.records[0].key))


def _written(queue: str, place: tuple[int, int]) -> str:
    where: dict[str, Any] = {"partition": place[0], "offset": place[1]}
    if place[1] < 0:  # it waits, or was passed on by a route
        return link(f"/queues/{queue}", done="written")
    return link(f"/queues/{queue}/record", done="written", **where)


def cancel(asked: Asked) -> str:
    """Cancel a waiting record by its key."""
    queue, key = asked.query.text("queue"), asked.query.text("key")
    key_bytes = bytes.fromhex(key[2:]) if _is_hex(key) else key.encode()
    done = cancel_waiting(asked.client, queue, key_bytes)
    return link(f"/queues/{queue}/waiting", done="cancelled" if done else "nothing")


def _is_hex(text: str) -> bool:
    try:
        return text.startswith("0x") and bool(bytes.fromhex(text[2:]))
    except ValueError:
        return False
