"""Users, rules and quotas as kproxy tells of them; what the asker may not see is a reason."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kproxy.security.acls import Op, Pattern, Resource
from kproxy.tools.client import Client, Refused, checked

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ANY = 1
_ALLOW = 3


class Rule(NamedTuple):
    """A right of a principal to resources, or its refusal."""

    principal: str
    effect: str
    operation: str
    resource: str
    name: str
    host: str


class Quota(NamedTuple):
    """A bound of users, client ids or addresses."""

    entity: str
    name: str
    value: float


def users(client: Client) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return who may log in, with mechanisms and iterations. Raises Refused."""
    answer = client.call(50, 0, {"users": None})
    checked(answer.error_code, answer.error_message or "users")
    return sorted(
        (one.user, [(MECHANISMS[info.mechanism], info.iterations) for info in one.credential_infos])
        for one in answer.results
    )


def rules(client: Client) -> list[Rule]:
    """Return all access rules. Raises Refused."""
    values = {
        "resource_type_filter": _ANY, "resource_name_filter": None, "pattern_type_filter": _ANY,
        "principal_filter": None, "host_filter": None, "operation": _ANY, "permission_type": _ANY,
    }  # fmt: skip
    answer = client.call(29, 3, values)
    checked(answer.error_code, answer.error_message or "access rules")
    return sorted(_rules(answer.resources))


def _rules(resources: Any) -> Iterator[Rule]:
    for one in resources:
        beginning = one.pattern_type == Pattern.PREFIXED
        for acl in one.acls:
            yield Rule(
                acl.principal, "allow" if acl.permission_type == _ALLOW else "deny",
                _name(Op, acl.operation), _name(Resource, one.resource_type),
                f"{one.resource_name}…" if beginning else one.resource_name, acl.host,
            )  # fmt: skip


def _name(kind: Any, number: int) -> str:
    try:
        return str(kind(number).name).lower().replace("_", " ")
    except ValueError:
        return str(number)


def quotas(client: Client) -> list[Quota]:
    """Return all quotas. Raises Refused."""
    answer = client.call(48, 1, {"components": (), "strict": False})
    checked(answer.error_code, answer.error_message or "quotas")
    found = []
    for entry in answer.entries or ():
        entity = ", ".join(
            f"{one.entity_type} {'(default)' if one.entity_name is None else one.entity_name}"
            for one in entry.entity
        )
        found += [Quota(entity, value.key, value.value) for value in entry.values]
    return sorted(found)


def or_reason(
    ask: Callable[[Client], Sequence[tuple[Any, ...]]], client: Client
) -> tuple[Sequence[tuple[Any, ...]], str | None]:
    """Return what is there, and why nothing of it is shown."""
    try:
        return ask(client), None
    except Refused as error:
        return [], str(error)
