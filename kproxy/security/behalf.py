"""Actions of the server on behalf of a client that set something: with its rights and quotas.

A signature is kept beside such a setting: the client that set it last, and its address.
"""

from typing import Protocol

from kproxy.metadata.setting import SET_BY
from kproxy.security.peer import ANONYMOUS, Peer
from kproxy.security.permits import EVERYTHING, Authorizer, Permits
from kproxy.security.quotas import NO_LIMIT, Mutations, Quotas

_UNASKED = "-"
"""The beginning of a signature that was checked for no rights, as there was no authorizer."""


def asked_for_rights(signature: str | None) -> bool:
    """Whether rights were asked for when it was set: not by an older kproxy."""
    return signature is not None and not signature.startswith(_UNASKED)


def signer(signature: str | None) -> Peer:
    host, _, principal = (signature or "").removeprefix(_UNASKED).partition(" ")
    return Peer(principal or ANONYMOUS, host)


class Behalf(Protocol):
    """A source of the rights and quotas of a signature."""

    def permits(self, signature: str | None) -> Permits:
        """Return the present rights of a setting's author; anybody's, if none were checked."""
        ...

    def mutations(self, signature: str | None) -> Mutations:
        """Return the meter of the queues that are made for it."""
        ...


class Signatures:
    """Signs settings, and says what may be done for their signers."""

    def __init__(self, authorizer: Authorizer, quotas: Quotas) -> None:
        self._authorizer = authorizer
        self._quotas = quotas

    def sign(self, peer: Peer) -> dict[str, str]:
        """Return the signature that is kept beside settings by which the server acts for a
        client.
        """
        unasked = "" if self._authorizer.enabled else _UNASKED
        return {SET_BY: f"{unasked}{peer.host} {peer.principal}"}

    def permits(self, signature: str | None) -> Permits:
        peer = signer(signature) if asked_for_rights(signature) else Peer()
        return self._authorizer.permits(peer)

    def mutations(self, signature: str | None) -> Mutations:
        if not self._quotas.active:
            return NO_LIMIT
        return self._quotas.mutations(signer(signature), None, strict=False)


class Anybody:
    """A `Behalf` for which all may be done."""

    def permits(self, signature: str | None) -> Permits:
        return EVERYTHING

    def mutations(self, signature: str | None) -> Mutations:
        return NO_LIMIT
