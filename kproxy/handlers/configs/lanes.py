"""The standing of a share group's lanes, and the release of held ones; for `kproxy lanes`.

No settings: DescribeConfigs and IncrementalAlterConfigs of a group carry them, each worker for the
partitions that it serves.
"""

import json
from contextlib import suppress
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import ConfigNeeds
from kproxy.loop.pace import scanned
from kproxy.metadata.setting import shown
from kproxy.security.acls import Op, Resource
from kproxy.shard.appends import append
from kproxy.shares.lanes.standing import LanesStanding, lanes_of
from kproxy.virtual.commands.shares import SET_MAX, FreeLanes
from kproxy.virtual.rows.shares import HELD_LANES, SHARE_PARTITIONS
from kproxy.worker.request import Request

LANES = "kproxy.lanes."
"""The prefix of a queue's name: how a group's lanes stand there; a value frees some."""
ALL = "*"
_PARTITIONS_MAX = 1000  # partitions of a queue that are told of


async def stand(worker: ConfigNeeds, request: Request, group: str, queue: str) -> str:
    """Return how the lanes stand of the partitions that are served here, as JSON."""
    told: dict[str, LanesStanding] = {}
    named = request.permits.sees(Op.READ, Resource.TOPIC, queue)
    for index in _partitions(worker, request, queue):
        with suppress(KafkaError):  # another worker serves it
            _, key, shard = worker.partition(queue, index)
            found = await lanes_of(worker.shares, shard, key, group, request.budget, named=named)
            if found is not None:
                told[str(index)] = found
        await request.budget.step()
    return json.dumps(told)


def _partitions(worker: ConfigNeeds, request: Request, name: str) -> range:
    sees = request.permits.sees(Op.DESCRIBE, Resource.TOPIC, name)
    queue = worker.catalogue.find(name) if sees else None
    return range(min(queue.partitions, _PARTITIONS_MAX) if queue is not None else 0)


def frees(resource: Any) -> bool:
    """Return whether a change of a group's settings is a release of lanes."""
    return any(change.name.startswith(LANES) for change in resource.configs)


async def free(worker: ConfigNeeds, request: Request, resource: Any) -> None:
    """Free lanes, by their hashes, in the partitions that are served here. Raise KafkaError."""
    group = str(resource.resource_name)
    for change in resource.configs:
        if not change.name.startswith(LANES):
            raise KafkaError(Code.INVALID_REQUEST, "a release of lanes has no settings beside it")
        queue = change.name.removeprefix(LANES)
        wanted = _hashes(change.value or "")
        for index in _partitions(worker, request, queue):
            with suppress(KafkaError):  # another worker serves it
                _, key, shard = worker.partition(queue, index)
                if SHARE_PARTITIONS.get(shard.state.get, key, group) is None:
                    continue
                held = [
                    HELD_LANES.parts(row)[2]
                    async for rows in scanned(shard.state.kv.walk, *HELD_LANES.range(key, group))
                    for row, _ in rows
                ]
                found = [(lane,) for lane in held if wanted is None or lane in wanted]
                for at in range(0, len(found), SET_MAX):
                    await append(shard, FreeLanes(key, group, found[at : at + SET_MAX]).envelope())
            await request.budget.step()


def _hashes(value: str) -> frozenset[int] | None:
    """Return the lanes that a value names; None: all. Raise KafkaError."""
    if value == ALL:
        return None
    try:
        return frozenset(int(part, 16) for part in value.split(","))
    except ValueError:
        text = f"lanes to be released are hashes, or {ALL}, not {shown(value)}"
        raise KafkaError(Code.INVALID_CONFIG, text) from None
