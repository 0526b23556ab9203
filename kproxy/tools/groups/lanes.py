"""`kproxy lanes`: the lanes of a share group, and the release of held ones."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from kproxy.tools.client import GROUP, Address, Client, Refused
from kproxy.tools.options import as_json_option, asked, server_option
from kproxy.tools.output import print_json, table

_STATE = "kproxy.lanes."
_ALL = "*"
_SET = 0


@click.command(name="lanes")
@click.argument("group")
@click.option("--queue", help="only of this queue; by default of all that the group reads")
@click.option("--release", multiple=True, metavar="LANE", help="let a held lane go on, by name")
@click.option("--release-all", is_flag=True, help="let all held lanes go on")
@as_json_option
@server_option
def lanes_command(
    group: str, queue: str | None, release: tuple[str, ...], release_all: bool, as_json: bool,
    bootstrap_server: Address,
) -> None:  # fmt: skip
    """Show the lanes of a share group: the largest, and those that are held; release some."""
    if release or release_all:
        freed = asked(bootstrap_server, lambda c: _release(c, group, queue, release, release_all))
        click.echo(f"released {freed}")
        return
    found = asked(bootstrap_server, lambda client: list(lanes(client, group, queue)))
    if as_json:
        print_json(found)
        return
    table(
        ["QUEUE", "PARTITION", "LANES", "AVAILABLE", "LOOKED AHEAD", "HELD", "AT THEIR RATE"],
        [(one["queue"], one["partition"], one["lanes"], one["available"], one["looked_ahead"],
          one["held"], one["resting"]) for one in found],
    )  # fmt: skip
    lines = [
        (one["queue"], one["partition"], lane["lane"], lane["records"], _state(lane))
        for one in found for lane in _shown(one)
    ]  # fmt: skip
    if lines:
        click.echo()
        table(["QUEUE", "PARTITION", "LANE", "RECORDS", "STATE"], lines)


def _shown(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the held lanes of a partition, and the largest of the others."""
    held = {lane["hash"] for lane in one["held_lanes"]}
    yield from one["held_lanes"]
    yield from (lane for lane in one["largest"] if lane["hash"] not in held)


def _state(lane: dict[str, Any]) -> str:
    if lane["held_at"] < 0:
        return "-"
    since = datetime.fromtimestamp(lane["since_ms"] / 1000, UTC).isoformat("T", "seconds")
    return f"held since {since}, offset {lane['held_at']} was given up"


def lanes(client: Client, group: str, queue: str | None) -> Iterator[dict[str, Any]]:
    """Yield how the lanes stand, a partition after another. Raises Refused."""
    found = False
    for name, nodes in _places(client, group, queue):
        told: dict[str, Any] = {}
        for node in nodes:
            for config in client.configs([group], (_STATE + name,), node, GROUP)[0].configs:
                told |= json.loads(config.value)
        for index, one in sorted(told.items(), key=lambda item: int(item[0])):
            found = True
            yield {"queue": name, "partition": int(index)} | one
    if not found:
        raise Refused(
            f"group {group} has no lanes: set kproxy.share.lane, for example to key (kproxy alter)"
        )


def _places(client: Client, group: str, queue: str | None) -> Iterator[tuple[str, set[int]]]:
    """Yield each queue that the group reads, with the workers that serve it. Raises Refused."""
    names = {name for name, _ in client.shared([group]).get(group, {})}
    if queue is not None:
        names &= {queue}
    if not names:
        raise Refused(f"no share group {group} reads {queue or 'any queue'}")
    for topic in client.metadata(sorted(names)):
        nodes = {part.leader_id for part in topic.partitions if part.leader_id >= 0}
        yield topic.name, nodes


def _release(
    client: Client, group: str, queue: str | None, names: tuple[str, ...], release_all: bool
) -> int:
    """Let lanes go on; return how many were held. Raises Refused: one of these names is not."""
    before = list(lanes(client, group, queue))
    held = {lane["lane"]: lane["hash"] for one in before for lane in one["held_lanes"]}
    unknown = [name for name in names if name not in held]
    if unknown and not release_all:
        raise Refused(f"lane {unknown[0]} is not held, or is not among the first: --release-all")
    value = _ALL if release_all else ",".join(held[name] for name in names)
    for name, nodes in _places(client, group, queue):
        change = {"name": _STATE + name, "config_operation": _SET, "value": value}
        resource = {"resource_type": GROUP, "resource_name": group, "configs": [change]}
        for node in nodes:
            values = {"resources": [resource], "validate_only": False}
            for response in client.call(44, 1, values, node).responses:
                if response.error_code:
                    raise Refused(response.error_message or f"error {response.error_code}")
    return sum(one["held"] for one in before) if release_all else len(set(names))
