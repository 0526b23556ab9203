"""DescribeConfigs (key 32), versions 1 to 4: of queues, of groups, and of this worker as a broker.

Rules and codes follow Kafka's `ConfigHelper`. A setting's synonyms are where its value comes from:
what the topic says, then what the broker says for all topics.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.delays.listing import page_of, read_place
from kproxy.delays.standing import DelayStanding, waiting_for
from kproxy.handlers.common.items import Refusing
from kproxy.handlers.common.needs import ConfigNeeds
from kproxy.handlers.common.permitted import need_settings
from kproxy.handlers.configs import server_settings
from kproxy.handlers.configs.lanes import LANES, stand
from kproxy.handlers.configs.letters import LETTERS, letters_of
from kproxy.handlers.configs.server_settings import Told
from kproxy.metadata import group_settings
from kproxy.metadata.catalogue import absent
from kproxy.metadata.setting import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    LIST,
    STRING,
    TOPIC,
    Setting,
    parts,
)
from kproxy.metadata.topic_settings import SETTINGS
from kproxy.routes.standing import RouteStanding, standing_of
from kproxy.security.acls import Op, Resource
from kproxy.shard.shard import Shard
from kproxy.shares.standing import Standing, standing
from kproxy.virtual.rows.group_settings import decode_group_configs
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import PartitionKey
from kproxy.worker.request import Request

_RESULT_BYTES, _ENTRY_BYTES = 600, 1000  # about what they take until they are encoded
_SOURCE_TOPIC, _SOURCE_STATIC_BROKER, _SOURCE_DEFAULT, _SOURCE_GROUP = 1, 4, 5, 8
_ABSENT = "there is no such topic"
STATE = "kproxy.state."
"""The prefix of a queue's name: what a share group does there, as far as this worker serves it.

No setting, but what `kproxy describe` asks each worker: who does not ask for it is not told."""
ROUTES = STATE + "routes"
"""The standing of a queue's routes, likewise, in partitions served here."""
DELAYS = STATE + "delays"
"""The records of a queue that wait until they are due, likewise."""
WAITING = STATE + "waiting:"
"""The prefix of a partition and a place (`delays.listing`): the records that wait from there on."""
_PARTITIONS_MAX = 1000  # partitions of a queue that are told of
_ROUTES_MAX, _ROUTE_BYTES = 20_000, 200
_Synonym = tuple[str, str, int]  # name, value, source


async def handle(worker: ConfigNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeConfigsResponse."""
    body, results = request.body, []
    for resource in body.resources:
        result: dict[str, Any] = {
            "error_code": Code.NONE,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": (),
        }
        with Refusing(result):
            need_settings(request, Op.DESCRIBE_CONFIGS, resource)
            wanted = resource.configuration_keys
            names = set(wanted) if wanted else None
            entries = _entries(worker, body, resource, names)
            found = [e for e in entries if names is None or e["name"] in names]
            if names is not None and ROUTES in names and resource.resource_type == TOPIC:
                found.append(await _routes(worker, request, resource.resource_name))
            if names is not None and DELAYS in names and resource.resource_type == TOPIC:
                found.append(await _delays(worker, request, resource.resource_name))
            if names is not None and resource.resource_type == TOPIC:
                for name in names:
                    if name.startswith(WAITING):
                        found.append(await _waiting(worker, request, resource.resource_name, name))
                    elif name.startswith(LETTERS):
                        letters = await letters_of(worker, request, resource.resource_name, name)
                        found.append(_told(body, name, letters, "Letters by cause."))
            result["configs"] = found
            if names is not None and resource.resource_type == GROUP:
                for name in names:
                    if name.startswith(STATE):
                        found.append(await _state(worker, request, resource.resource_name, name))
                    elif name.startswith(LANES):
                        queue = name.removeprefix(LANES)
                        stands = await stand(worker, request, resource.resource_name, queue)
                        found.append(_told(body, name, stands, "How a group's lanes stand."))
            await request.budget.step(sum(map(_size, found)))
        results.append(result)
        await request.budget.step(_RESULT_BYTES)
    return {"results": results}


def _size(entry: dict[str, Any]) -> int:
    values = (entry["value"], *(one["value"] for one in entry["synonyms"]))
    return _ENTRY_BYTES + sum(len(value or "") for value in values)


def _entries(
    worker: ConfigNeeds, body: Any, resource: Any, names: set[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a resource. Raise KafkaError."""
    kind, name, me = resource.resource_type, resource.resource_name, worker.cluster.me.node_id
    if not name and kind in (GROUP, CLIENT_METRICS, BROKER_LOGGER):
        whose = "Group name" if kind == GROUP else "The name"
        raise KafkaError(Code.INVALID_REQUEST, f"{whose} must not be empty")
    if kind == TOPIC:
        queue = worker.catalogue.find(name)
        if queue is None:
            code, fault = absent(name)
            raise KafkaError(code, fault or _ABSENT)
        settings = (s for n, s in SETTINGS.items() if names is None or n in names)
        return (_of_queue(worker, body, queue, setting) for setting in settings)
    if kind == GROUP:
        return _of_group(worker, body, name)
    if kind == CLIENT_METRICS:
        return (_of_server(body, told) for told in server_settings.of_client_metrics(worker.config))
    if kind not in (BROKER, BROKER_LOGGER):
        raise KafkaError(Code.INVALID_REQUEST, "topics, groups and brokers have settings here")
    if name not in ("", str(me)):
        raise KafkaError(Code.INVALID_REQUEST, f"this is broker {me}")
    if not name:
        return iter(())  # settings for all brokers while they ran
    if kind == BROKER_LOGGER:
        return (_of_server(body, told) for told in server_settings.of_loggers(worker.config))
    return (_of_server(body, told) for told in server_settings.of_broker(worker.config, me))


def _of_queue(worker: ConfigNeeds, body: Any, queue: Queue, setting: Setting) -> dict[str, Any]:
    synonyms, value = [], worker.batch_limits.default(setting)
    if setting.name in queue.configs:
        value = queue.configs[setting.name]
        if setting.kind == LIST:  # a creation's answer shows it as it came, as in Kafka
            value = ",".join(dict.fromkeys(parts(value)))
        synonyms.append((setting.name, value, _SOURCE_TOPIC))
    source = _SOURCE_TOPIC if synonyms else _SOURCE_DEFAULT
    if setting.broker_name is not None:
        default = worker.batch_limits.default(setting)
        synonyms.append((setting.broker_name, default, _SOURCE_DEFAULT))
    return _entry(body, setting.name, setting.kind, value, source, synonyms, setting.documentation)


def _of_group(worker: ConfigNeeds, body: Any, group: str) -> Iterator[dict[str, Any]]:
    row = worker.group_row(group)
    configs = {} if row is None else decode_group_configs(row).configs
    for setting in group_settings.SETTINGS.values():
        default = worker.group_rules.default(setting)
        shown = server_settings.group_default(setting)
        broker_name = setting.broker_name or setting.name
        synonyms: list[_Synonym] = []
        if setting.name in configs:
            synonyms.append((setting.name, configs[setting.name], _SOURCE_GROUP))
        if default != shown:
            synonyms.append((broker_name, default, _SOURCE_STATIC_BROKER))
        synonyms.append((broker_name, shown, _SOURCE_DEFAULT))
        _, value, source = synonyms[0]
        documentation = setting.documentation
        yield _entry(body, setting.name, setting.kind, value, source, synonyms, documentation)


def _served(
    worker: ConfigNeeds, request: Request, name: str
) -> Iterator[tuple[int, PartitionKey, Shard]]:
    """Yield a queue's partitions that are served here, for how they stand.

    Look at one before others have their turn: then its shard may have left. Require DESCRIBE,
    besides what its settings ask for.
    """
    sees = request.permits.sees(Op.DESCRIBE, Resource.TOPIC, name)
    queue = worker.catalogue.find(name) if sees else None
    for index in range(min(queue.partitions, _PARTITIONS_MAX) if queue is not None else 0):
        with suppress(KafkaError):  # another worker serves it
            _, key, shard = worker.partition(name, index)
            yield index, key, shard


def _stands(body: Any, name: str, stands: Any, documentation: str) -> dict[str, Any]:
    """Return how something stands, as JSON."""
    return _told(body, name, json.dumps(stands), documentation)


def _told(body: Any, name: str, value: str, documentation: str) -> dict[str, Any]:
    return _entry(body, name, STRING, value, _SOURCE_DEFAULT, [], documentation, read_only=True)


async def _state(worker: ConfigNeeds, request: Request, group: str, name: str) -> dict[str, Any]:
    """Return what waits for a dead-letter queue, and each partition that is served here."""
    told: dict[str, Standing] = {}
    waiting: dict[int, int] = {}
    for index, key, shard in _served(worker, request, name.removeprefix(STATE)):
        if (stands := standing(worker.shares, shard, key, group)) is not None:
            told[str(index)] = stands
        waiting[shard.shard] = worker.dead_letters.waiting(shard, group)
        await request.budget.step()
    found = {"dead_letters_waiting": sum(waiting.values()), "partitions": told}
    return _stands(request.body, name, found, "What a share group does in a queue.")


async def _routes(worker: ConfigNeeds, request: Request, name: str) -> dict[str, Any]:
    """Return each route out of each partition that is served here, if the client may know of the
    queue that defines it."""
    told: list[RouteStanding] = []
    sees = request.permits.sees
    for _, key, shard in _served(worker, request, name):
        before = len(told)
        routes = standing_of(worker.passages, worker.catalogue, shard, key)
        told += [one for one in routes if sees(Op.DESCRIBE, Resource.TOPIC, one["queue"])]
        await request.budget.step((len(told) - before) * _ROUTE_BYTES)
        if len(told) >= _ROUTES_MAX:
            break
    return _stands(request.body, ROUTES, told, "How the routes stand that a queue's records go.")


async def _delays(worker: ConfigNeeds, request: Request, name: str) -> dict[str, Any]:
    """Return each partition that is served here and for which something waits."""
    told: list[DelayStanding] = []
    for _, key, shard in _served(worker, request, name):
        if (stands := waiting_for(shard, key)) is not None:
            told.append(stands)
        await request.budget.step()
    return _stands(request.body, DELAYS, told, "What waits for a queue until it is due.")


async def _waiting(worker: ConfigNeeds, request: Request, queue: str, name: str) -> dict[str, Any]:
    """Return records that wait for a partition. Require READ: they are its records.

    Raise KafkaError.
    """
    if not request.permits.topic(Op.READ, queue):
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
    index, _, place = name.removeprefix(WAITING).partition(":")
    try:
        start = read_place(place)
        _, key, shard = worker.partition(queue, int(index))
    except ValueError:
        raise KafkaError(Code.INVALID_REQUEST, f"{name} is no place") from None
    await request.budget.rest()
    try:
        records, following = await page_of(shard, key, start, worker.delays.readers)
    except (OSError, EOFError) as error:
        raise KafkaError(Code.KAFKA_STORAGE_ERROR, str(error)) from error
    await request.budget.step(len(records) * _ENTRY_BYTES)
    found = {
        "records": records,
        "next": None if following is None else ":".join(map(str, following)),
    }
    return _stands(request.body, name, found, "Records that wait until they are due.")


def _of_server(body: Any, told: Told) -> dict[str, Any]:
    source = _SOURCE_DEFAULT if told.value == told.default else _SOURCE_STATIC_BROKER
    synonyms = [(told.name, told.value, source)]
    if source != _SOURCE_DEFAULT:
        synonyms.append((told.name, told.default, _SOURCE_DEFAULT))
    documentation = told.documentation
    return _entry(
        body, told.name, told.kind, told.value, source, synonyms, documentation, read_only=True
    )


def _entry(
    body: Any, name: str, kind: int, value: str, source: int, synonyms: list[_Synonym],
    documentation: str, *, read_only: bool = False,
) -> dict[str, Any]:  # fmt: skip
    told = synonyms if body.include_synonyms else ()
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [dict(zip(("name", "value", "source"), one, strict=True)) for one in told],
        "config_type": kind,
        "documentation": documentation if getattr(body, "include_documentation", False) else None,
    }
