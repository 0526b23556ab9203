"""IncrementalAlterConfigs (44) and AlterConfigs (33), of queues and of groups (`group_configs`).

Rules and codes follow Kafka's `ConfigurationControlManager`. An operator gives a broker's settings
at its start, so they cannot be altered here.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.hearing import hear_of, hear_of_dead_letters, hear_of_sources
from kproxy.handlers.common.items import Asked, Refusing, settle
from kproxy.handlers.common.needs import ConfigNeeds
from kproxy.handlers.common.permitted import denied, need_settings
from kproxy.handlers.common.route_checks import check_routes, signed
from kproxy.handlers.configs import groups as group_configs
from kproxy.handlers.configs import jobs, lanes
from kproxy.loop.pace import Pace
from kproxy.metadata import queue_settings
from kproxy.metadata.catalogue import absent
from kproxy.metadata.group_settings import COPIES_RECORD, DEAD_LETTERS
from kproxy.metadata.levels import Level
from kproxy.metadata.setting import (
    BROKER,
    BROKER_LOGGER,
    COPIES_BY,
    GROUP,
    LIST,
    SET_BY,
    TOPIC,
    parts,
    shown,
)
from kproxy.metadata.topic_settings import SETTINGS
from kproxy.security.acls import Op
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.commands.queues import ConfigureQueue
from kproxy.virtual.levels import WAITS_FROM
from kproxy.virtual.rows.queues import Queue
from kproxy.worker.request import Request

_ANSWER_BYTES = 600
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)

_Change = tuple[dict[str, str], list[str], bool]
"""Settings given, settings dropped, and whether all others are dropped."""
_OfQueue = Callable[[Queue, Any, Pace, Level], Awaitable[tuple[_Change, dict[str, str]]]]
"""The result of changes to a queue's settings, and all it has then. Raises KafkaError."""
_OfGroup = Callable[[ConfigNeeds, Any, Pace], Awaitable[ConfigureGroup]]
"""The result of changes to a group's settings. Raises KafkaError."""


async def incremental(worker: ConfigNeeds, request: Request) -> Mapping[str, Any]:
    """Return an IncrementalAlterConfigsResponse: settings that are not named stay."""
    return await _altered(worker, request, _incremental, group_configs.incremental)


async def whole(worker: ConfigNeeds, request: Request) -> Mapping[str, Any]:
    """Return an AlterConfigsResponse: settings that are not named go back to their defaults."""
    return await _altered(worker, request, _whole, group_configs.whole)


async def _altered(
    worker: ConfigNeeds, request: Request, of_queue: _OfQueue, of_group: _OfGroup
) -> Mapping[str, Any]:
    body = request.body
    times = await request.budget.count((r.resource_type, r.resource_name) for r in body.resources)
    answers = []
    altering: Asked = []
    topics = (r.resource_name for r in body.resources if r.resource_type == TOPIC)
    await hear_of(worker, topics, request.budget)
    await hear_of_sources(worker, body.resources, request.budget)
    await hear_of_dead_letters(worker, body.resources, request.budget)
    for resource in body.resources:
        answer: dict[str, Any] = {
            "error_code": Code.NONE,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        answers.append(answer)
        await request.budget.step(_ANSWER_BYTES + len(resource.configs))
        with Refusing(answer):
            if times[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(Code.INVALID_REQUEST, "the request names this resource twice")
            if of_queue is _incremental and jobs.orders(resource):
                await jobs.order(worker, request, resource, validate_only=body.validate_only)
                continue
            if of_queue is not _whole or resource.resource_type != BROKER_LOGGER:
                need_settings(request, Op.ALTER_CONFIGS, resource)
            if _only_deletes(worker, resource):
                continue
            if resource.resource_type == GROUP and lanes.frees(resource):
                if not body.validate_only:
                    await lanes.free(worker, request, resource)
                continue
            if resource.resource_type == GROUP:
                configured = await of_group(worker, resource, request.budget)
                configured = _check_dead_letters(worker, request, configured)
                change = configured.envelope()
            else:
                if of_queue is _incremental:
                    await _need_lists(resource, request.budget)
                queue = _queue(worker, resource)
                values, after = await of_queue(
                    queue, resource.configs, request.budget, worker.level
                )
                worker.batch_limits.check(after, values[0])
                check_routes(
                    worker, request.permits, queue.name, queue.partitions, after, queue.configs,
                    {*values[0], *values[1]},
                )  # fmt: skip
                given, dropped, replaces = values
                given = signed(worker, request, queue.configs, given, dropped, replace_all=replaces)
                change = ConfigureQueue(
                    queue.queue_id, given, dropped, replaces, worker.level.reaches(WAITS_FROM)
                ).envelope()
            if not body.validate_only:
                altering.append((answer, worker.routes.submit(resource.resource_name, change)))
    await settle(altering, request.budget)
    return {"responses": answers}


def _check_dead_letters(
    worker: ConfigNeeds, request: Request, change: ConfigureGroup
) -> ConfigureGroup:
    """Check that who sets where dead letters go may write there, and create what is made.

    Return the change, with who that is: what it may not read is not copied. Raise KafkaError.
    """
    given, target = change.given, change.given.get(DEAD_LETTERS)
    signature = worker.signatures.sign(request.peer)
    if COPIES_RECORD in given:
        change = change._replace(given=given | {COPIES_BY: signature[SET_BY]})
    if target is None and not change.replace_all and DEAD_LETTERS not in change.dropped:
        target = worker.group_settings(change.group).dead_letter_queue
    if not target or not (DEAD_LETTERS in given or COPIES_RECORD in given):
        return change
    allowed = request.permits.topic(Op.WRITE, target)
    creates = worker.config.errors_deadletterqueue_auto_create_topics_enable
    if allowed and creates and worker.catalogue.find(target) is None:
        allowed = request.permits.may_create(target)
    if not allowed:
        raise denied(Code.TOPIC_AUTHORIZATION_FAILED)
    return change._replace(given=change.given | signature)


def _only_deletes(worker: ConfigNeeds, resource: Any) -> bool:
    """Tell whether a broker is to forget settings: it has none that were given while it ran.

    `kafka-reassign-partitions` does so with its throttles.
    """
    brokers = {"", *(str(broker.node_id) for broker in worker.cluster.brokers)}
    is_here = resource.resource_type == BROKER and resource.resource_name in brokers
    return is_here and all(
        getattr(change, "config_operation", _SET) == _DELETE for change in resource.configs
    )


async def _need_lists(resource: Any, pace: Pace) -> None:
    """Raise KafkaError if parts of what is no list are to come or go, whatever topic it is."""
    for change in resource.configs if resource.resource_type == TOPIC else ():
        await pace.step()
        setting = SETTINGS.get(change.name)
        changes_parts = change.config_operation in (_APPEND, _SUBTRACT)
        if changes_parts and change.value is not None and setting and setting.kind != LIST:
            raise KafkaError(Code.INVALID_CONFIG, f"{change.name} is not a list: set it as a whole")


def _queue(worker: ConfigNeeds, resource: Any) -> Queue:
    if resource.resource_type == BROKER_LOGGER:
        raise KafkaError(Code.INVALID_CONFIG, "the level of kproxy's log cannot be changed")
    if resource.resource_type != TOPIC:
        what = "a broker's settings are given at its start"
        if resource.resource_type != BROKER:
            what = "only topics and groups have settings that can be changed"
        raise KafkaError(Code.INVALID_REQUEST, what)
    if not resource.resource_name:
        raise KafkaError(Code.INVALID_REQUEST, "a topic has a name")
    queue = worker.catalogue.find(resource.resource_name)
    if queue is None:
        code, fault = absent(resource.resource_name)
        raise KafkaError(code, fault or "there is no such queue")
    return queue


async def _incremental(
    queue: Queue, changes: Any, pace: Pace, level: Level
) -> tuple[_Change, dict[str, str]]:
    given: dict[str, str] = {}
    dropped: list[str] = []
    for name, times in (await pace.count(change.name for change in changes)).items():
        if times > 1:
            raise KafkaError(Code.INVALID_REQUEST, f"the request changes {shown(name)} twice")
        await pace.step()
    for change in changes:
        await pace.step()
        operation, name = change.config_operation, change.name
        if operation == _DELETE:
            if name != SET_BY:
                dropped.append(name)
        elif change.value is None:
            raise KafkaError(Code.INVALID_REQUEST, f"{shown(name)} needs a value")
        elif operation == _SET:
            given[name] = change.value
        elif operation in (_APPEND, _SUBTRACT):
            given[name] = _of_list(queue, name, change.value, operation)
        else:
            raise KafkaError(Code.INVALID_REQUEST, f"there is no operation {operation}")
    kept = queue_settings.check(given)
    left = {name: value for name, value in queue.configs.items() if name not in dropped}
    after = left | kept
    queue_settings.check_together(after, level, kept)
    return (kept, dropped, False), after


def _of_list(queue: Queue, name: str, value: str, operation: int) -> str:
    """Return a list setting with a part added or taken away. Raise KafkaError."""
    setting = SETTINGS.get(name)
    if len(value) > queue_settings.VALUE_MAX:
        raise KafkaError(Code.INVALID_CONFIG, f"{shown(name)}: this is too much at once")
    now = [] if setting is None else parts(queue_settings.effective(name, queue.configs))
    named = parts(value)
    if operation == _APPEND and not any(named):
        raise KafkaError(Code.INVALID_CONFIG, f"{shown(name)}: there is nothing to append")
    if operation == _APPEND:
        return ",".join(dict.fromkeys([*now, *named]))
    taken = set(named)
    return ",".join(part for part in now if part not in taken)


async def _whole(
    queue: Queue, changes: Any, pace: Pace, level: Level
) -> tuple[_Change, dict[str, str]]:
    for change in changes:
        if change.value is None:
            raise KafkaError(Code.INVALID_REQUEST, "a setting needs a value")
        await pace.step()
    given = queue_settings.check(queue_settings.given(changes))
    queue_settings.check_together(given, level)
    return (given, [], True), given
