"""ACLs (29 to 31), delegation tokens (38 to 41), quotas (48) and SCRAM users (50).

kproxy has none of them. It answers as a Kafka without an authorizer does on a plaintext listener.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kproxy.errors import Code
from kproxy.worker.worker import Request, Worker

_PART_BYTES = 600  # about what one takes until it is encoded
_NO_AUTHORIZER = {
    "error_code": Code.SECURITY_DISABLED,
    "error_message": "No Authorizer is configured.",
}
_NO_TIME = datetime.fromtimestamp(0, UTC)
_NOBODY = {
    f"{role}principal_{part}": "" for role in ("", "token_requester_") for part in ("type", "name")
}


async def describe_acls(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DescribeAclsResponse."""
    return _NO_AUTHORIZER | {"resources": ()}


async def create_acls(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A CreateAclsResponse."""
    return {"results": await _each(request, request.body.creations, _NO_AUTHORIZER)}


async def delete_acls(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DeleteAclsResponse."""
    refused = _NO_AUTHORIZER | {"matching_acls": ()}
    return {"filter_results": await _each(request, request.body.filters, refused)}


async def _each(
    request: Request, asked: Iterable[Any], answer: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    answers = []
    for _ in asked:
        answers.append(answer)
        await request.budget.step(_PART_BYTES)
    return answers


async def create_token(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A CreateDelegationTokenResponse."""
    return _NOBODY | {
        "error_code": Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        "issue_timestamp": _NO_TIME,
        "expiry_timestamp": _NO_TIME,
        "max_timestamp": _NO_TIME,
        "token_id": "",
        "hmac": b"",
    }


async def prolong_token(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A RenewDelegationTokenResponse, and an ExpireDelegationTokenResponse."""
    code = Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return {"error_code": code, "expiry_timestamp": _NO_TIME}


async def tokens(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DescribeDelegationTokenResponse."""
    return {"error_code": Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "tokens": ()}


async def quotas(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DescribeClientQuotasResponse: there are none."""
    return {"error_code": Code.NONE, "error_message": None, "entries": ()}


async def scram_users(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DescribeUserScramCredentialsResponse: there are none."""
    results = []
    users = await request.budget.count(user.name for user in request.body.users or ())
    for name, times in users.items():
        code, message = Code.RESOURCE_NOT_FOUND, f"there is no user {name}"
        if times > 1:
            code, message = Code.DUPLICATE_RESOURCE, f"{name} is named {times} times"
        results.append(
            {
                "user": name,
                "error_code": code,
                "error_message": message,
                "credential_infos": (),
            }
        )
        await request.budget.step(_PART_BYTES)
    return {"error_code": Code.NONE, "error_message": None, "results": results}
