"""Delegation tokens (38 to 41).

kproxy has none. It answers as a Kafka does on a plaintext listener.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kproxy.common.errors import Code
from kproxy.handlers.common.needs import AccessNeeds
from kproxy.worker.request import Request

_PART_BYTES = 600  # about what one takes until it is encoded
_NO_TIME = datetime.fromtimestamp(0, UTC)
_NOBODY = {
    f"{role}principal_{part}": "" for role in ("", "token_requester_") for part in ("type", "name")
}


async def create_token(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a CreateDelegationTokenResponse."""
    return _NOBODY | {
        "error_code": Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        "issue_timestamp": _NO_TIME,
        "expiry_timestamp": _NO_TIME,
        "max_timestamp": _NO_TIME,
        "token_id": "",
        "hmac": b"",
    }


async def prolong_token(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a RenewDelegationTokenResponse, and an ExpireDelegationTokenResponse."""
    code = Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return {"error_code": code, "expiry_timestamp": _NO_TIME}


async def tokens(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeDelegationTokenResponse."""
    return {"error_code": Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "tokens": ()}
