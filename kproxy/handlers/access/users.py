"""DescribeUserScramCredentials (key 50) and AlterUserScramCredentials (key 51).

A client sends a password hashed already. kproxy keeps what it checks logins with, and tells nobody.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import structlog

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import AccessNeeds
from kproxy.loop.pace import Pace, slices
from kproxy.security import scram
from kproxy.security.peer import Peer
from kproxy.virtual.rows.access import USER, user_name, user_of
from kproxy.worker.request import Request

_log = structlog.get_logger()

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_PART_BYTES = 600  # about what one takes until it is encoded
_NAME_BYTES_MAX = 1024
_SALT_BYTES_MAX = 1024
_NAMES_AT_ONCE = 1000
_AT_ONCE = 50
"""Users whose rows are put in one step: `Worker.secure` takes all that they may have as one."""
_Rows = dict[str, dict[str, Any] | None]
"""The rows to put by name, or with None to drop."""


class Change(NamedTuple):
    """One of a user's credentials, new or (`hashed` is None) gone."""

    user: str
    mechanism: int
    iterations: int = 0
    salt: bytes = b""
    hashed: bytes | None = None


class _Refused(Exception):
    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


async def describe(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeUserScramCredentialsResponse: of the named users, or of all."""
    asked = await request.budget.count(u.name for u in request.body.users or ())
    results = []
    for user in asked or await _all(worker, request):
        code, message = Code.NONE, ""
        found = _infos(worker, user)
        if not asked and not found:
            continue  # gone meanwhile
        if asked.get(user, 0) > 1:
            code = Code.DUPLICATE_RESOURCE
            what = "Cannot describe SCRAM credentials for the same user twice in a single request"
            message = f"{what}: {user}"
            found = []
        elif not found:
            code = Code.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {user}"
        results.append(
            {
                "user": user, "error_code": code, "error_message": message,
                "credential_infos": found,
            }
        )  # fmt: skip
        await request.budget.step(_PART_BYTES)
    return {"error_code": Code.NONE, "error_message": "", "results": results}


async def _all(worker: AccessNeeds, request: Request) -> dict[str, None]:
    """Return all users, as they are now: the rows may change while others have their turn."""
    found: dict[str, None] = {}
    for some in slices(worker.security.names(), _NAMES_AT_ONCE):
        found |= {user_of(name)[0]: None for name in some if name[0] == USER}
        await request.budget.step()
    return found


def _infos(worker: AccessNeeds, user: str) -> list[dict[str, int]]:
    """Return what is told of each of a user's credentials."""
    found = []
    for number, mechanism in MECHANISMS.items():
        value = worker.security.credentials(user, mechanism)
        if value is not None:
            found.append({"mechanism": number, "iterations": value["iterations"]})
    return found


async def alter(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return an AlterUserScramCredentialsResponse: one result for each user."""
    body = request.body
    deletions = (Change(one.name, one.mechanism) for one in body.deletions)
    upsertions = (
        Change(one.name, one.mechanism, one.iterations, one.salt, one.salted_password)
        for one in body.upsertions
    )
    changes = chain(deletions, upsertions)
    results = []
    for user, (code, message) in (await altered(worker, request.peer, changes)).items():
        results.append({"user": user, "error_code": code, "error_message": message})
        await request.budget.step(_PART_BYTES)
    return {"results": results}


async def altered(
    worker: AccessNeeds, peer: Peer, changes: Iterable[Change]
) -> dict[str, tuple[Code, str | None]]:
    """Carry out changes, some users' at a time; what became of each user's, all or none.

    Kafka takes one change of a user in a request. Here one of each mechanism is taken, as its
    documentation has it, and as `kproxy users add` sends it.
    """
    outcomes: dict[str, tuple[Code, str | None]] = {}
    rows: dict[str, _Rows] = {}
    seen: set[tuple[str, int]] = set()
    pace = Pace()
    pace.begin()
    for one in changes:
        await pace.step()
        if outcomes.setdefault(one.user, (Code.NONE, None))[0]:
            continue
        try:
            if (one.user, one.mechanism) in seen:
                message = "A user credential cannot be altered twice in the same request"
                raise _Refused(Code.DUPLICATE_RESOURCE, message)
            rows.setdefault(one.user, {}).update(_rows(worker, one))
            seen.add((one.user, one.mechanism))
        except _Refused as refused:
            outcomes[one.user] = refused.code, str(refused)
            rows.pop(one.user, None)
    for some in slices(rows.items(), _AT_ONCE):
        try:
            await _put(worker, peer, dict(some))
        except KafkaError as error:
            outcomes |= {user: (error.code, error.message) for user, _ in some}
        await pace.rest()
    held: list[Any] = [rows]
    del rows
    await pace.let_go(held)
    return outcomes


async def _put(worker: AccessNeeds, peer: Peer, users: Mapping[str, _Rows]) -> None:
    """Put rows by user, in one step. Raise KafkaError."""
    rows: _Rows = {**worker.security.beside_users()}
    for some in users.values():
        rows |= some
    worker.security.check_room(name for name, row in rows.items() if row is not None)
    await worker.secure(rows)
    for user, some in users.items():
        changed = {name[1:].partition(":")[0]: "put" if row else "drop"
                   for name, row in some.items()}  # fmt: skip
        _log.info("user_changed", by=peer.principal, host=peer.host, user=user, **_plain(changed))


def _plain(changed: Mapping[str, str]) -> dict[str, list[str]]:
    return {
        what: [mechanism for mechanism, how in changed.items() if how == what]
        for what in set(changed.values())
    }


def _rows(worker: AccessNeeds, change: Change) -> _Rows:
    """Return the rows of the changes. Raise _Refused."""
    mechanism = MECHANISMS.get(change.mechanism)
    if not change.user or "\0" in change.user:
        raise _Refused(Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(change.user.encode()) > _NAME_BYTES_MAX:
        raise _Refused(Code.UNACCEPTABLE_CREDENTIAL, f"a name has {_NAME_BYTES_MAX} bytes at most")
    if mechanism is None:
        raise _Refused(Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    name = user_name(change.user, mechanism)
    if change.hashed is None:
        if worker.security.credentials(change.user, mechanism) is None:
            message = "Attempt to delete a user credential that does not exist"
            raise _Refused(Code.RESOURCE_NOT_FOUND, message)
        return {name: None}
    if change.iterations < scram.ITERATIONS_MIN:
        raise _Refused(Code.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > scram.ITERATIONS_MAX:
        raise _Refused(Code.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not 0 < len(change.salt) <= _SALT_BYTES_MAX or not 0 < len(change.hashed) <= _SALT_BYTES_MAX:
        raise _Refused(Code.UNACCEPTABLE_CREDENTIAL, "a salt or a hash of no or of too many bytes")
    made = scram.of_salted(mechanism, change.hashed, change.salt, change.iterations)
    return {name: made.value()}
