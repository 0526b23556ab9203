"""The management of users over the admin socket.

It creates the first user, before anyone can log in.
"""

import base64
import binascii
from typing import Any

from anyio.lowlevel import checkpoint

from kproxy.admin_socket.server import Asked, Refused
from kproxy.handlers.access.users import MECHANISMS, Change, altered
from kproxy.loop.pace import slices
from kproxy.security.peer import Peer
from kproxy.virtual.rows.access import USER, user_of
from kproxy.worker.worker import Worker

_OPERATOR = Peer("User:ANONYMOUS", "admin.sock", "admin.sock")
_AT_ONCE = 1000
_NUMBERS = {name: number for number, name in MECHANISMS.items()}


async def change_users(worker: Worker, asked: Asked) -> dict[str, Any]:
    """Put and drop credentials. Raises Refused."""
    try:
        changes = [_change(one) for one in asked.arguments["changes"]]
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error):
        raise Refused("its changes cannot be read") from None
    for user, (code, message) in (await altered(worker, _OPERATOR, changes)).items():
        if code:
            raise Refused(f"{user}: {message or code.name}")
    return {}


def _change(values: dict[str, Any]) -> Change:
    user, mechanism = str(values["user"]), int(values["mechanism"])
    if "hashed" not in values:
        return Change(user, mechanism)
    salt, hashed = (base64.b64decode(values[name], validate=True) for name in ("salt", "hashed"))
    return Change(user, mechanism, int(values["iterations"]), salt, hashed)


async def list_users(worker: Worker, asked: Asked) -> dict[str, Any]:
    """Report each of them."""
    for some in slices(worker.security.names(), _AT_ONCE):
        for user, mechanism in [user_of(name) for name in some if name[0] == USER]:
            value = worker.security.credentials(user, mechanism)
            if value is not None:  # they may be gone meanwhile
                number = _NUMBERS[mechanism]
                asked.report(user=user, mechanism=number, iterations=value["iterations"])
        await checkpoint()
    return {}
