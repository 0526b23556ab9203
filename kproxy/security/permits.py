"""The rights of a client: decided by the access rules, as Kafka's StandardAuthorizer does.

A super user may do anything. Else a rule that denies wins over any that allows. If no rule matches
it is refused, but for `allow_everyone_if_no_acl_found` where no rule names the resource.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol

import structlog
from anyio import Lock

from kproxy.loop.pace import Pace
from kproxy.security.acls import (
    ALLOWS,
    CLUSTER_NAME,
    DENIES,
    OPERATIONS,
    WILDCARD,
    Acls,
    Grants,
    Op,
    Resource,
    any_allowed,
)
from kproxy.security.audience import ALL, Audience
from kproxy.security.peer import NOBODY, Peer

_CACHED_MAX = 1000
_NAME_MAX = 249
"""Characters of a topic's name; others are not kept, as a client may choose longer ones."""
_PEERS_MAX = 256
_LOGGED_A_SECOND = 20
_log = structlog.get_logger()


class Rules(Protocol):
    """The rules as of now."""

    @property
    def generation(self) -> int: ...
    @property
    def acls(self) -> Acls: ...


class Permits:
    """The rights of one client. `all`: it may do anything."""

    __slots__ = (
        "_about", "_any_topic", "_generation", "_known", "_lenient", "_rules", "_walking",
        "all", "log", "peer",
    )  # fmt: skip

    def __init__(
        self, peer: Peer, rules: Rules, *, everything: bool = False, lenient: bool = False
    ) -> None:
        """Take `lenient`: a resource that no rule names is everybody's."""
        self.log = RefusalLog()  # its own, so that nobody hides what others try
        self.peer = peer
        self.all = everything
        self._rules = rules
        self._lenient = lenient
        self._generation = -1
        self._about: dict[int, list[Grants]] = {}
        self._known: dict[tuple[int, int, str], bool] = {}
        self._any_topic: dict[int, bool] = {}
        self._walking = Lock()

    def may(self, op: Op, kind: Resource, name: str) -> bool:
        """Whether the client may do this to a resource; where it may not, that is logged."""
        if self.sees(op, kind, name):
            return True
        self.refused(op, kind, name)
        return False

    def refused(self, op: Op, kind: Resource, name: str) -> None:
        """Note that the client was refused something."""
        if self.log.has_room:
            peer = self.peer
            _log.warning(
                "not_authorized", principal=peer.principal, host=peer.host, listener=peer.listener,
                operation=op.name, resource=kind.name, name=name,
            )  # fmt: skip

    def sees(self, op: Op, kind: Resource, name: str) -> bool:
        """Do as `may`, where permissions only say what a list shows."""
        if self.all:
            return True
        self._follow()
        key = op, kind, name
        found = self._known.get(key)
        if found is None:
            found = self._decide(op, kind, name)
            if len(name) > _NAME_MAX:
                return found
            if len(self._known) >= _CACHED_MAX:
                self._known.clear()
            self._known[key] = found
        return found

    def topic(self, op: Op, name: str) -> bool:
        return self.all or self.may(op, Resource.TOPIC, name)

    def group(self, op: Op, name: str) -> bool:
        return self.all or self.may(op, Resource.GROUP, name)

    def transaction(self, op: Op, name: str) -> bool:
        return self.all or self.may(op, Resource.TRANSACTIONAL_ID, name)

    def cluster(self, op: Op) -> bool:
        return self.all or self.may(op, Resource.CLUSTER, CLUSTER_NAME)

    def may_create(self, name: str) -> bool:
        """Whether the client may make a topic."""
        if self.all or self.sees(Op.CREATE, Resource.CLUSTER, CLUSTER_NAME):
            return True
        return self.may(Op.CREATE, Resource.TOPIC, name)

    async def any_topic(self, op: Op, pace: Pace) -> bool:
        """Whether there is a name of which the client may do this to a topic."""
        if self.all or self.sees(op, Resource.TOPIC, "hardcode"):  # Kafka asks for that name first
            return True
        self._follow()
        found = self._any_topic.get(op)
        return await self._walk(op, pace) if found is None else found

    async def _walk(self, op: Op, pace: Pace) -> bool:
        """Look at all rules of topics, for all requests that wait for it."""
        async with self._walking:
            grants = self._grants(Resource.TOPIC)
            found = self._any_topic.get(op)
            if found is None:
                generation = self._generation
                found = await any_allowed(grants, ALLOWS[op], DENIES[op], pace)
                if generation == self._generation:
                    self._any_topic[op] = found
        pace.begin()
        return found

    def topics(self, op: Op, beginning: str) -> bool:
        """Whether the client may do this to all topics whose names begin so."""
        if self.all:
            return True
        grants = self._grants(Resource.TOPIC)
        if any(g.covers(beginning, ALLOWS[op]) for g in grants):
            if not any(g.touches(beginning, DENIES[op]) for g in grants):
                return True
        self.refused(op, Resource.TOPIC, beginning + WILDCARD)
        return False

    def operations(self, kind: Resource, name: str) -> int:
        """Return `authorized_operations`: bits of what the client may do to a resource."""
        return sum(1 << op for op in OPERATIONS[kind] if self.sees(op, kind, name))

    def _follow(self) -> None:
        """Forget what other rules have said."""
        if self._generation != self._rules.generation:
            self._about.clear()
            self._known.clear()
            self._any_topic.clear()
            self._generation = self._rules.generation

    def _decide(self, op: Op, kind: Resource, name: str) -> bool:
        mask = 0
        for grants in self._grants(kind):
            mask |= grants.of(name)
        if mask & DENIES[op]:
            return False
        if mask & ALLOWS[op]:
            return True
        return self._lenient and not self._rules.acls.names(kind, name)

    def _grants(self, kind: int) -> list[Grants]:
        self._follow()
        found = self._about.get(kind)
        if found is None:
            peer = self.peer
            found = self._rules.acls.about(peer.principal, peer.host, kind)
            self._about[kind] = found
        return found


class RefusalLog:
    """A bound on the refusals that are logged:

    a client may name a hundred thousand queues at once.
    """

    def __init__(self, monotonic: Callable[[], float] = monotonic) -> None:
        self.refusals = 0
        self._monotonic = monotonic
        self._since = 0.0
        self._logged = 0

    @property
    def has_room(self) -> bool:
        """Whether one more is logged; it counts as logged then."""
        self.refusals += 1
        if self._logged >= _LOGGED_A_SECOND:
            now = self._monotonic()
            if now - self._since < 1:
                return False
            self._since, self._logged = now, 0
        self._logged += 1
        return True


class Authorizer:
    """The authorizer of a worker. Without `enabled` everybody may do anything."""

    def __init__(
        self, rules: Rules, *, enabled: bool, super_users: frozenset[str], lenient: bool
    ) -> None:
        self.enabled = enabled
        self._rules = rules
        self._super_users = super_users
        self._lenient = lenient
        self._permits: dict[Peer, Permits] = {}

    def permits(self, peer: Peer) -> Permits:
        """Return the rights of a client, now and after each change of the rules."""
        if not self.enabled:
            return EVERYTHING
        found = self._permits.get(peer)
        if found is None:
            if len(self._permits) >= _PEERS_MAX:
                del self._permits[next(iter(self._permits))]
            found = self._permits[peer] = Permits(
                peer, self._rules,
                everything=peer.principal in self._super_users, lenient=self._lenient,
            )  # fmt: skip
        return found

    @property
    def generation(self) -> int:
        return self._rules.generation if self.enabled else 0

    def audience(self, principal: str, host: str) -> Audience:
        """Return the topics that a client may know of, as of the rules of now."""
        permits = self.permits(Peer(principal, host))
        if permits.all:
            return ALL
        found = self._rules.acls.about(principal, host, Resource.TOPIC)
        key = tuple(map(id, found))  # another client has the same where rules say the same of both
        return Audience(key, partial(permits.sees, Op.DESCRIBE, Resource.TOPIC))


class _NoRules:
    generation = 0
    acls = Acls()


EVERYTHING = Permits(NOBODY, _NoRules(), everything=True)
"""The rights where no client has to log in."""
