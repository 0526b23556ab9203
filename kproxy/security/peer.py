"""Who is at the other end of a connection."""

from ipaddress import ip_address
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


def plain_ip(text: str) -> str:
    """An address as a socket tells it, however it is written. Of text that is none, the text."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)
