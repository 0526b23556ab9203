"""The other end of a connection."""

from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that has not logged in, as Kafka names it."""


_NETWORK = 64
"""Bits of an IPv6 address: somebody who has one mostly has all behind them."""


class Peer(NamedTuple):
    """A client, as far as it is known. `principal`: its type and name, `User:alice`."""

    principal: str = ANONYMOUS
    host: str = ""  # its IP address
    listener: str = ""  # by which it came
    tenant: str = ""


NOBODY = Peer()


def plain_ip(text: str) -> str:
    """Return an address as a socket tells it, however it is written.

    Other text is returned as it is.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def network_of(ip: str) -> str:
    """Return the network that one machine may own: bounds count it as one address."""
    if ":" not in ip:
        return ip
    return str(int(IPv6Address(ip.partition("%")[0])) >> (128 - _NETWORK))


def holder(peer: Peer) -> str:
    """Return whose part of a pool a client uses: its user's; without a login its address's."""
    return network_of(peer.host) if peer.principal == ANONYMOUS else peer.principal
