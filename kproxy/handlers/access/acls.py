"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): who may what.

Rules, codes and texts follow Kafka's `AclApis` and `AclControlManager`. With `authorizer=none`
there are no rules, and they are answered as a Kafka without an authorizer does.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

import structlog

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.items import Refusing
from kproxy.handlers.common.needs import AccessNeeds
from kproxy.loop.pace import slices
from kproxy.security.acls import CLUSTER_NAME, Binding, Effect, Filter, Op, Pattern, Resource
from kproxy.virtual.rows.access import acl_name
from kproxy.worker.request import Request

_log = structlog.get_logger()

_NAME_BYTES_MAX = 32_000
_PART_BYTES = 600  # about what one takes until it is encoded
_AT_ONCE = 500  # rules that are compared with a filter in one turn
_TOLD_MAX = 20
NO_AUTHORIZER = {
    "error_code": Code.SECURITY_DISABLED,
    "error_message": "No Authorizer is configured.",
}


async def describe(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeAclsResponse: rules by resource."""
    if not worker.authorizer.enabled:
        return NO_AUTHORIZER | {"resources": ()}
    wanted = _filter(request.body)
    if wanted.empty():
        message = f"DescribeAclsRequest contains UNKNOWN elements: {wanted.unknown()}"
        fault = {"error_code": Code.INVALID_REQUEST, "error_message": message}
        return fault | {"resources": ()}
    found: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for rule in await _matching(worker, request, wanted):
        found.setdefault((rule.kind, rule.name, rule.pattern), []).append(_entry(rule))
        await request.budget.step(_size(rule))
    resources = []
    for (kind, name, pattern), entries in found.items():
        resources.append(
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": entries}
        )
        await request.budget.step()
    return {"error_code": Code.NONE, "error_message": None, "resources": resources}


async def create(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a CreateAclsResponse; a rule is in force at this worker when this is answered."""
    creations = request.body.creations
    if not worker.authorizer.enabled:
        return {"results": await _each(request, creations, NO_AUTHORIZER)}
    results: list[dict[str, Any]] = []
    wanted: dict[Binding, list[dict[str, Any]]] = {}
    for one in creations:
        result: dict[str, Any] = {"error_code": Code.NONE, "error_message": None}
        results.append(result)
        await request.budget.step(_PART_BYTES)
        with Refusing(result):
            wanted.setdefault(_checked(one), []).append(result)
    rules = worker.security.acls.rules
    new: dict[Binding, str] = {}
    for rule in wanted:
        if rule not in rules:
            new[rule] = acl_name(rule)
        await request.budget.step()
    try:
        worker.security.check_room(new.values())
        await _secure(worker, request, new, {})
        if new:
            _log.info("access_rules_created", **_audited(request, new))
    except KafkaError as error:
        await _refuse(request, (wanted[rule] for rule in new), error)
    await _let_go(request, new)
    await _let_go(request, wanted)
    return {"results": results}


async def delete(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DeleteAclsResponse; a deleted rule is void at this worker when this is answered."""
    filters = request.body.filters
    if not worker.authorizer.enabled:
        refused = NO_AUTHORIZER | {"matching_acls": ()}
        return {"filter_results": await _each(request, filters, refused)}
    results: list[dict[str, Any]] = []
    doomed: dict[Binding, list[dict[str, Any]]] = {}
    for one in filters:
        wanted = _filter(one)
        answers: list[dict[str, Any]] = []
        result: dict[str, Any] = {
            "error_code": Code.NONE, "error_message": None, "matching_acls": answers,
        }  # fmt: skip
        results.append(result)
        await request.budget.step(_PART_BYTES)
        if part := wanted.unknown():
            message = f"Unknown {part}."
            result |= {"error_code": Code.INVALID_REQUEST, "error_message": message}
            continue
        for rule in await _matching(worker, request, wanted):
            answer = _entry(rule) | {
                "error_code": Code.NONE, "error_message": None, "resource_type": rule.kind,
                "resource_name": rule.name, "pattern_type": rule.pattern,
            }  # fmt: skip
            answers.append(answer)
            doomed.setdefault(rule, []).append(answer)
            await request.budget.step(_size(rule))
    try:
        await _secure(worker, request, doomed, None)
        if doomed:
            _log.info("access_rules_deleted", **_audited(request, doomed))
    except KafkaError as error:
        await _refuse(request, doomed.values(), error)
    await _let_go(request, doomed)
    return {"filter_results": results}


async def _secure(
    worker: AccessNeeds, request: Request, rules: Iterable[Binding], value: dict[str, Any] | None
) -> None:
    """Put rules, or with None drop them, some at a time. Raise KafkaError."""
    for some in slices(rules, _AT_ONCE):
        await worker.secure({acl_name(rule): value for rule in some})
        await request.budget.rest()


async def _refuse(
    request: Request, answers: Iterable[list[dict[str, Any]]], error: KafkaError
) -> None:
    for some in answers:
        for answer in some:
            answer |= {"error_code": error.code, "error_message": error.message}
            await request.budget.step()


async def _let_go(request: Request, rules: dict[Binding, Any]) -> None:
    """Free what was kept by rule, some at a time."""
    while rules:
        for _ in range(min(len(rules), _AT_ONCE)):
            rules.popitem()
        await request.budget.step()


async def _each(
    request: Request, asked: Iterable[Any], answer: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    answers = []
    for _ in asked:
        answers.append(answer)
        await request.budget.step(_PART_BYTES)
    return answers


def _filter(asked: Any) -> Filter:
    return Filter(
        asked.resource_type_filter, asked.resource_name_filter, asked.pattern_type_filter,
        asked.principal_filter, asked.host_filter, asked.operation, asked.permission_type,
    )  # fmt: skip


async def _matching(worker: AccessNeeds, request: Request, wanted: Filter) -> list[Binding]:
    found: list[Binding] = []
    for some in slices(list(worker.security.acls.rules), _AT_ONCE):
        found += filter(wanted.matches, some)
        await request.budget.step()
    return found


def _size(rule: Binding) -> int:
    """Return the bytes that a rule takes until an answer is encoded, about."""
    texts = rule.name, rule.principal, rule.host
    return _PART_BYTES + sum([len(text) if text.isascii() else 4 * len(text) for text in texts])


def _entry(rule: Binding) -> dict[str, Any]:
    return {
        "principal": rule.principal, "host": rule.host, "operation": rule.operation,
        "permission_type": rule.effect,
    }  # fmt: skip


def _checked(asked: Any) -> Binding:
    """Return the requested rule. Raise KafkaError (INVALID_REQUEST)."""
    kind, pattern = asked.resource_type, asked.resource_pattern_type
    name, principal, host = asked.resource_name, asked.principal, asked.host
    fault = None
    if kind == Resource.CLUSTER and name != CLUSTER_NAME:
        fault = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not name:
        fault = "Invalid empty resource name"
    elif pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        fault = f"Invalid patternType {_named(Pattern, pattern)}"
    elif not Resource.TOPIC <= kind <= Resource.USER:
        fault = f"Invalid resourceType {_named(Resource, kind)}"
    elif not Op.ALL <= asked.operation <= Op.TWO_PHASE_COMMIT:
        fault = f"Invalid operation {_named(Op, asked.operation)}"
    elif asked.permission_type not in (Effect.DENY, Effect.ALLOW):
        fault = f"Invalid permissionType {_named(Effect, asked.permission_type)}"
    elif ":" not in principal:
        fault = (
            f"Could not parse principal from `{principal}` (no colon is present separating the"
            " principal type from the principal name)"
        )
    elif max(len(text.encode()) for text in (name, principal, host)) > _NAME_BYTES_MAX:
        fault = "A name is too long"
    if fault is not None:
        raise KafkaError(Code.INVALID_REQUEST, fault)
    return Binding(kind, name, pattern, principal, host, asked.operation, asked.permission_type)


def _named(kinds: Any, number: int) -> str:
    return str(kinds(number).name) if number in set(kinds) else "UNKNOWN"


def _audited(request: Request, rules: Collection[Binding]) -> dict[str, Any]:
    """Return the fields that log who changes which rules."""
    peer = request.peer
    told = [
        f"{Effect(r.effect).name} {r.principal} from {r.host} {Op(r.operation).name}"
        f" {Resource(r.kind).name} {r.name} {Pattern(r.pattern).name}"
        for r in islice(rules, _TOLD_MAX)
    ]
    return {
        "principal": peer.principal, "host": peer.host, "listener": peer.listener,
        "count": len(rules), "rules": told,
    }  # fmt: skip
