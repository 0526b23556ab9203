"""What the admin socket does with users: so the first one is made, whom nobody could let in."""

import base64
import binascii
from typing import Any

from kproxy.admin_socket.server import Asked, Refused
from kproxy.handlers.users import MECHANISMS, Change, altered
from kproxy.security.peer import Peer
from kproxy.worker.worker import Worker

_OPERATOR = Peer("User:ANONYMOUS", "admin.sock", "admin.sock")
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
    for user, mechanism, value in worker.security.users():
        number = _NUMBERS[mechanism]
        asked.report(user=user, mechanism=number, iterations=value["iterations"])
    return {}
