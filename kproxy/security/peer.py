"""Who is at the other end of a connection."""

from typing import NamedTuple

ANONYMOUS = "User:ANONYMOUS"
"""Who has not said who it is, as Kafka names it."""


class Peer(NamedTuple):
    """A client, as far as it is known. `principal`: its type and name, `User:alice`."""

    principal: str = ANONYMOUS
    host: str = ""  # its IP address
    listener: str = ""  # by which it came
    tenant: str = ""


NOBODY = Peer()
