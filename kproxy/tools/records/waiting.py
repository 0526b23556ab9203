"""`kproxy waiting`: the records of a queue that wait until they are due, and their cancellation."""

import heapq
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import click

from kproxy.common.errors import CannotStart, Code
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, of_producer
from kproxy.tools.client import Address, Client, Refused, checked, chunks
from kproxy.tools.options import as_json_option, asked, server_option
from kproxy.tools.output import print_json, size, table
from kproxy.tools.records.times import moment
from kproxy.tools.records.walks import Parts, walk

_LIMIT = 100
_STATES_AT_ONCE = 1000
REPLACE = "kproxy.delay.replace"
_DELIVERY_S, _AGAIN_S = 30, 0.2
_AGAIN = frozenset(
    (Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT,
     Code.KAFKA_STORAGE_ERROR, Code.NOT_ENOUGH_REPLICAS)
)  # fmt: skip


@click.command(name="waiting")
@click.argument("queue")
@click.option("--from", "first", callback=moment, metavar="TIME",
              help="begin with those that are due then")  # fmt: skip
@click.option(
    "--limit", default=_LIMIT, show_default=True, type=click.IntRange(1), help="most lines shown"
)
@click.option("--cancel", metavar="KEY",
              help="cancel the one with this key, where kproxy.delay.replace=key")  # fmt: skip
@as_json_option
@server_option
def waiting_command(
    queue: str, first: int | None, limit: int, cancel: str | None, as_json: bool,
    bootstrap_server: Address,
) -> None:  # fmt: skip
    """List the records of a queue that wait, by when they are due, or cancel one."""
    if cancel is not None:
        key = cancel.encode()
        if not asked(bootstrap_server, lambda client: cancel_waiting(client, queue, key)):
            raise CannotStart(
                f"nothing waits under {cancel}: it was delivered, or cancelled, or never there"
            )
        click.echo("cancelled 1")
        return
    found = asked(bootstrap_server, lambda client: listed(client, queue, first or 0, limit + 1))
    if as_json:
        print_json(found[:limit])
    else:
        table(["DUE", "PARTITION", "KEY", "BYTES"], map(_cells, found[:limit]))
    if len(found) > limit:
        more = found[limit]["due_ms"]
        click.echo(f"… and more: --from {more} goes on from here", err=True)


class WaitingQueue(NamedTuple):
    """The records that wait for a queue. `next_ms`: when the first of them is due; -1: unknown."""

    records: int
    next_ms: int


def waiting_queues(
    client: Client, *, first: str, prefix: str, limit: int
) -> tuple[list[tuple[str, WaitingQueue]], str | None]:
    """Return the queues for which records wait, by name, as by `walk`."""

    def pick(parts: Parts, most: int) -> list[tuple[str, WaitingQueue]]:
        found = _delays(client, parts)
        return [
            (name, WaitingQueue(sum(one["records"] for one in found[name]),
                                min(one["next_ms"] for one in found[name])))
            for name in [name for name in parts if found.get(name)][:most]
        ]  # fmt: skip

    return walk(client, pick, first=first, prefix=prefix, limit=limit)


def _delays(client: Client, queues: Parts) -> dict[str, list[dict[str, Any]]]:
    """Return how many records wait for each partition for which any does, of many queues."""
    by_node: dict[int, list[str]] = defaultdict(list)
    for name, leaders in queues.items():
        for node in {node for node in leaders.values() if node >= 0}:
            by_node[node].append(name)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for node, names in by_node.items():
        for some in chunks(names, _STATES_AT_ONCE):
            for result in client.configs(some, ("kproxy.state.delays",), node):
                for config in result.configs:
                    found[result.resource_name] += json.loads(config.value)
    return found


def _look(client: Client, queue: str, part: Any, place: str) -> dict[str, Any]:
    """Return some of a partition's records that wait, from a place on, and the next place."""
    key = f"kproxy.state.waiting:{part.partition_index}:{place}"
    for config in client.configs([queue], (key,), part.leader_id)[0].configs:
        found: dict[str, Any] = json.loads(config.value)
        return found
    raise Refused(f"{queue}: no worker says what waits for partition {part.partition_index}")


def listed(client: Client, queue: str, first: int, limit: int) -> list[dict[str, Any]]:
    """Return records by their due times, of all partitions."""
    parts = client.queue(queue).partitions
    found = [_of_partition(client, queue, part, first) for part in parts]
    return list(islice(heapq.merge(*found, key=lambda one: int(one["due_ms"])), limit))


def _of_partition(client: Client, queue: str, part: Any, first: int) -> Iterator[dict[str, Any]]:
    place: str | None = f"{first}:0:0"
    while place is not None:
        told = _look(client, queue, part, place)
        for one in sorted(told["records"], key=lambda one: int(one["due_ms"])):
            yield {"partition": part.partition_index, **one}
        place = told["next"]


def _cells(line: dict[str, Any]) -> tuple[Any, ...]:
    due = datetime.fromtimestamp(line["due_ms"] / 1000, UTC).isoformat("T", "milliseconds")
    return due, line["partition"], key_shown(line["key"]), size(line["bytes"])


def key_shown(digits: str | None) -> str:
    if digits is None:
        return "-"
    key = bytes.fromhex(digits)
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"0x{digits}"


def cancel_waiting(client: Client, queue: str, key: bytes) -> bool:
    """Return whether anything was cancelled: which partition a key is in is its producer's.

    A cancellation that is sent again is one all the same, so that nobody is told that nothing was
    cancelled where the answer was lost. Raise Refused (the queue's records have no keys to name),
    CannotStart.
    """
    if client.settings(queue, (REPLACE,)).get(REPLACE) != "key":
        raise Refused(f"{queue} has no {REPLACE}=key: nothing of it can be cancelled by its key")
    partitions = len(client.queue(queue).partitions)
    values = {"transactional_id": None, "transaction_timeout": _DELIVERY_S * 1000}
    made = client.call(ApiKey.INIT_PRODUCER_ID, 4, values)
    checked(made.error_code, "a producer's id")
    bodies = [(body_of(Content(key, None), []), int(time.time() * 1000))]
    batch = of_producer(batch_of_bodies(bodies), made.producer_id, made.producer_epoch)
    taken = [_taken(client, queue, index, batch) for index in range(partitions)]
    return True in taken


def _taken(client: Client, queue: str, index: int, batch: bytes) -> bool:
    """Return whether a partition takes a cancellation. Raise Refused, CannotStart."""
    until_s = time.monotonic() + _DELIVERY_S
    part = {"name": queue, "partition_data": [{"index": index, "records": batch}]}
    values = {"acks": -1, "timeout": _DELIVERY_S * 1000, "topic_data": [part],
              "transactional_id": None}  # fmt: skip
    while True:
        try:
            parts = client.queue(queue).partitions
            leaders = {part.partition_index: part.leader_id for part in parts}
            answer = client.call(ApiKey.PRODUCE, 9, values, leaders[index])
        except (CannotStart, KeyError) as error:  # nobody serves it, or it has just moved
            if time.monotonic() >= until_s:
                raise CannotStart(f"not cancelled: {error}") from None
        else:
            told = answer.responses[0].partition_responses[0]
            if told.error_code == Code.INVALID_RECORD:
                return False
            if told.error_code not in _AGAIN or time.monotonic() >= until_s:
                checked(told.error_code, told.error_message or "not cancelled")
                return True
        time.sleep(_AGAIN_S)
