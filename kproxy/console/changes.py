"""Changes of queues, groups and transactions that a form asks for, as the user who sent it."""

from collections.abc import Iterable

from click import BadParameter

from kproxy.console.pages import Asked, BadQuery, Query, link
from kproxy.tools.admin.transactions import abort
from kproxy.tools.administration import alter, create
from kproxy.tools.changes import Outcome
from kproxy.tools.client import GROUP, QUEUE, Refused
from kproxy.tools.groups.offsets import delete_group, reset
from kproxy.tools.records.offsets import parsed

_VALUE_MAX = 64 << 10
_PARTITIONS_MAX = (1 << 31) - 1  # the server has its own, far below


def create_queue(asked: Asked) -> str:
    """Create a queue with the server's settings, or with partitions that are named."""
    name, partitions = asked.query.text("name"), asked.query.number("partitions")
    if partitions is not None and not 0 < partitions <= _PARTITIONS_MAX:
        raise BadQuery(f"a queue has from 1 to {_PARTITIONS_MAX} partitions")
    _checked(create(asked.client, [name], partitions or -1, {}, dry=False))
    return link(f"/queues/{name}", done="created")


def delete_queue(asked: Asked) -> str:
    """Delete a queue whose name was typed."""
    queue = asked.query.text("queue")
    _confirm(asked.query, queue)
    _checked(Outcome(name, code) for name, code in asked.client.delete([queue]))
    return link("/queues", done="deleted")


def change_queue(asked: Asked) -> str:
    """Set a setting of a queue, or unset it where the value is empty."""
    queue = asked.query.text("queue")
    _checked(alter(asked.client, QUEUE, [queue], _change(asked.query), dry=False))
    return link(f"/queues/{queue}", done="changed")


def change_group(asked: Asked) -> str:
    """Set a setting of a group, or unset it where the value is empty."""
    group = asked.query.text("id")
    _checked(alter(asked.client, GROUP, [group], _change(asked.query), dry=False))
    return link("/group", id=group, done="changed")


def reset_group(asked: Asked) -> str:
    """Set the offsets that a group without members has on one queue."""
    query = asked.query
    group, queue = query.text("id"), query.text("of")
    _confirm(query, group)
    try:
        place, _ = parsed(query.text("at") or "end")
    except BadParameter as error:
        raise BadQuery(error.message) from None
    reset(asked.client, group, queue, place)
    return link("/group", id=group, done="reset")


def remove_group(asked: Asked) -> str:
    """Delete a group without members."""
    group = asked.query.text("id")
    _confirm(asked.query, group)
    delete_group(asked.client, group)
    return link("/groups", done="deleted")


def abort_transaction(asked: Asked) -> str:
    """Abort an open transaction; its producer is fenced."""
    name = asked.query.text("id")
    _confirm(asked.query, name)
    abort(asked.client, name)
    return link("/transactions", done="aborted")


def _change(query: Query) -> dict[str, str | None]:
    name = query.text("name").strip()
    if not name:
        raise BadQuery("name a setting")
    return {name: query.text("value", most=_VALUE_MAX) or None}


def _confirm(query: Query, name: str) -> None:
    """Raise BadQuery where the name was not typed."""
    if query.text("confirm") != name:
        raise BadQuery(f"nothing was changed: type {name} to confirm it")


def _checked(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.code:
            raise Refused(f"{outcome.name}: {outcome.reason}")
