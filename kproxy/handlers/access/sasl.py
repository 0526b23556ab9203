"""SaslHandshake (key 17) and SaslAuthenticate (key 36) where a client does not log in.

When it does, `server.login_connection` answers them itself.
"""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code
from kproxy.handlers.common.needs import AccessNeeds
from kproxy.worker.request import Request


async def handshake(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a SaslHandshakeResponse."""
    return {"error_code": Code.ILLEGAL_SASL_STATE, "mechanisms": ()}


async def authenticate(worker: AccessNeeds, request: Request) -> Mapping[str, Any]:
    """Return a SaslAuthenticateResponse."""
    return {
        "error_code": Code.ILLEGAL_SASL_STATE,
        "error_message": "SaslAuthenticate request received after successful authentication",
        "auth_bytes": b"",
        "session_lifetime": 0,
    }
