"""DescribeClientQuotas (key 48) and AlterClientQuotas (key 49): what clients may have.

Rules, codes and texts follow Kafka's `ClientQuotasImage` and `ClientQuotaControlManager`. An
address is a literal one: kproxy asks no name service what a host's is.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from math import isfinite
from typing import Any

import structlog

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import AccessNeeds
from kproxy.security.cache import Entity
from kproxy.security.quotas import (
    CLIENT_ID,
    CLIENT_ID_MAX,
    CONNECTED,
    CONSUMED,
    IP,
    MUTATED,
    PRODUCED,
    USER,
    WORKED,
)
from kproxy.virtual.rows.access import quota_name
from kproxy.worker.request import Request

_log = structlog.get_logger()

_KINDS = (IP, USER, CLIENT_ID)
_EXACT, _DEFAULT, _SPECIFIED = range(3)
_PART_BYTES = 600  # about what one takes until it is encoded
_NAMES_MAX = {USER: 1024, CLIENT_ID: CLIENT_ID_MAX, IP: 100}  # characters
_TOLD_MAX = 20
_CLIENTS = {PRODUCED: 2**63 - 1, CONSUMED: 2**63 - 1, WORKED: None, MUTATED: None}
_IPS = {CONNECTED: 2**31 - 1}
"""The limits that there are: the largest whole number of each, None if it is any number."""
_NUMBERS = {2**63 - 1: "a LONG", 2**31 - 1: "an INT"}

Named = dict[str, str | None]


def _invalid(message: str) -> KafkaError:
    return KafkaError(Code.INVALID_REQUEST, message)


# -- describing


async def describe(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeClientQuotasResponse: of the entities that a filter is about."""
    try:
        exact, kinds = _filter(request.body.components)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "entries": None}
    strict, entries = request.body.strict, []
    for entity, rates in list(worker.security.quotas.items()):
        await request.budget.step()
        if strict and len(entity) != len(exact) + len(kinds):
            continue
        named = dict(entity)
        if all(kind in named for kind in (*exact, *kinds)) and exact.items() <= named.items():
            entries.append(_entry(named, rates))
            await request.budget.step(_PART_BYTES)
    return {"error_code": Code.NONE, "error_message": "", "entries": entries}


def _entry(named: Named, rates: Mapping[str, float]) -> dict[str, Any]:
    return {
        "entity": _entity(named),
        "values": [{"key": key, "value": limit} for key, limit in rates.items()],
    }


def _entity(named: Named) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in named.items()]


def _filter(components: Any) -> tuple[Named, set[str]]:
    """Return (names by what they are of, what there is to be any name of). Raise KafkaError."""
    exact: Named = {}
    kinds: set[str] = set()
    for one in components:
        kind, match, name = one.entity_type, one.match_type, one.match
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in kinds:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _KINDS:
            raise KafkaError(Code.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match == _EXACT:
            if name is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            exact[kind] = name
        elif match in (_DEFAULT, _SPECIFIED):
            if name is not None:
                what = "DEFAULT" if match == _DEFAULT else "SPECIFIED"
                raise _invalid(
                    f"Request specified MATCH_TYPE_{what}, but also specified a match string."
                )
            if match == _DEFAULT:
                exact[kind] = None
            else:
                kinds.add(kind)
        else:
            raise _invalid(f"Unknown match type {match}")
    asked = exact.keys() | kinds
    if IP in asked and len(asked) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return exact, kinds


# -- altering


async def alter(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return an AlterClientQuotasResponse. All sound parts are in force here when it is
    answered."""
    outcomes: dict[Entity, tuple[Code, str | None]] = {}
    changes: dict[str, dict[str, Any] | None] = {}
    sound: dict[Entity, None] = {}
    for one in request.body.entries:
        await request.budget.step(_PART_BYTES)
        named = {part.entity_type: part.entity_name for part in one.entity}
        entity = tuple(sorted(named.items(), key=str))
        ops = {op.key: None if op.remove else op.value for op in one.ops}
        try:
            if entity in outcomes or len(ops) < len(one.ops):
                sound.pop(entity, None)
                raise _invalid(f"Ignoring duplicate entity {_shown(named)}")
            changes |= _checked(worker, named, ops)
            outcomes[entity] = Code.NONE, None
            sound[entity] = None
        except KafkaError as error:
            outcomes[entity] = error.code, error.message
    if changes and not request.body.validate_only:
        try:
            await _put(worker, request, changes)
        except KafkaError as error:
            outcomes |= dict.fromkeys(sound, (error.code, error.message))
    entries = []
    for entity, (code, message) in outcomes.items():
        entries.append(
            {"error_code": code, "error_message": message, "entity": _entity(dict(entity))}
        )
        await request.budget.step(_PART_BYTES)
    return {"entries": entries}


async def _put(
    worker: AccessNeeds, request: Request, changes: Mapping[str, dict[str, Any] | None]
) -> None:
    """Put rows. Raise KafkaError."""
    worker.security.check_room(name for name, value in changes.items() if value is not None)
    await worker.secure(changes)
    told = {
        name[1:]: None if value is None else value["value"]
        for name, value in list(changes.items())[:_TOLD_MAX]
    }
    _log.info(
        "quotas_changed", by=request.peer.principal, host=request.peer.host, count=len(changes),
        quotas=told,
    )  # fmt: skip


def _shown(named: Named) -> str:
    inner = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in named.items())
    return f"ClientQuotaEntity(entries={{{inner}}})"


def _checked(
    worker: AccessNeeds, named: Named, ops: Mapping[str, float | None]
) -> dict[str, dict[str, Any] | None]:
    """Return the rows that change. Raise KafkaError."""
    known = _limited(named)
    entity = tuple(sorted(named.items(), key=str))
    now = worker.security.quotas.get(entity, {})
    rows: dict[str, dict[str, Any] | None] = {}
    for key, value in ops.items():
        if value is None:
            if key in now:
                rows[quota_name(entity, key)] = None
            continue
        _check_value(known, key, value)
        if now.get(key) != value:
            rows[quota_name(entity, key)] = {"value": value}
    return rows


def _limited(named: Named) -> Mapping[str, int | None]:
    """Return what may be limited of an entity. Raise KafkaError: there is no such entity."""
    if not named:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in named.items():
        if kind not in _KINDS:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        if name is not None and len(name) > _NAMES_MAX[kind]:
            raise _invalid(f"{kind} has {_NAMES_MAX[kind]} characters at most")
    if IP not in named:
        return _CLIENTS
    if len(named) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or"
            " ClientId"
        )
    name = named[IP]
    try:
        if name is not None:
            ip_address(name)
    except ValueError:
        raise _invalid(f"{name} is not a valid IP or resolvable host.") from None
    return _IPS


def _check_value(known: Mapping[str, int | None], key: str, value: float) -> None:
    """Check a value. Raise KafkaError."""
    if key not in known:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0 or not isfinite(value):
        raise _invalid(f"Quota {key} must be greater than 0")
    most = known[key]
    if most is None:
        return
    if value > most:
        raise _invalid(f"Proposed value for {key} is too large for {_NUMBERS[most]}.")
    if value % 1.0 > 1e-6:
        raise _invalid(f"{key} cannot be a fractional value.")
