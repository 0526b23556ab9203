"""The resolution of groups' subscriptions, and target assignments, if coordinators make them.

Small work is done within the heartbeat that needs it. Large work is done in slices while heartbeats
are answered from the state before it, as Kafka does it off the coordinator's thread. The result
enters the group, and is logged, under the group's lock.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from itertools import islice
from typing import Any, NamedTuple

import anyio
import structlog
from crc32c import crc32c

from kproxy.common.errors import Code
from kproxy.groups.assigning.assignors import ASSIGNORS, MemberSubscription, Target
from kproxy.groups.assigning.regex import Readers, compiled, pattern_of
from kproxy.groups.assigning.simple_assignor import SIMPLE, simple
from kproxy.groups.model.assigned_group import AssignedGroup, AssignmentResult
from kproxy.groups.model.counters import Subscriptions
from kproxy.loop.steps import EVERY, Result, Steps, Work, finish, in_order
from kproxy.metadata.catalogue import Lookup
from kproxy.security.peer import ANONYMOUS
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId

_log = structlog.get_logger()

_REFRESH_S = 1.0
_SHARE = 20  # share of the time that looking again may take
_SHARE_OF_NEW = 4  # likewise, where somebody waits for it
_MATCHES_MAX = 2_000_000  # names that the regular expressions of a group match together
_TEXTS = 100  # patterns at once: each may be a regex to compile
_NAMES = 1000  # names in one scan: none is open while others are served

_ASSIGNORS = ASSIGNORS | {SIMPLE: simple}

Assigned = AssignedGroup[Any]
Topology = int
Resolved = dict[str, frozenset[str]]
"""Names by regular expression."""


class _Matching(NamedTuple):
    """A pattern that is looked for: by its regex, by who may know of a name; what was found."""

    matches: Callable[[str], Any]
    sees: Callable[[str], bool]
    found: list[str]


class ResolvedPattern(NamedTuple):
    """The queues that a group was found to read, as of so many `changes` of the catalogue."""

    changes: int
    resolved: Resolved
    topology: Topology


class SubscriptionResolver:
    """The resolver of one coordinator's groups; `run` until cancelled."""

    def __init__(
        self,
        lookup: Lookup,
        now: Callable[[], float],
        there: Callable[[Assigned], bool],
        log: Callable[[Assigned], Awaitable[Code]],
        readers: Readers,
    ) -> None:
        """Set up; `there`: whether this is the group of its id; `log`: log it under its lock."""
        self._lookup = lookup
        self._readers = readers
        self.now = now
        self.there = there
        self._log = log
        self._waiting: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._more = anyio.Event()

    # -- the queues that they read

    def refresh_epoch(self, group: Assigned, *, subscribed: bool) -> bool:
        """Begin a group's next epoch if its members read other queues than its target was made of.

        Return whether they do. `subscribed`: the asking member's subscription has changed.
        """
        others = self._refresh(group, now=subscribed) or subscribed
        group.epoch += others
        return others

    def _refresh(self, group: Assigned, *, now: bool) -> bool:
        """Return whether the queues that a group reads have changed since its target was made."""
        if group.resolving or not (now or self._is_due(group)):
            return False
        work, started = Work(self._resolve_pattern(group)), self.now()
        if work.begin():
            return self._take_pattern(group, work.result, started)
        group.resolving = True
        self.later(lambda: self._finish_refresh(group, work, started))
        return False

    @property
    def _changes(self) -> int:
        """A count that goes up when there are other queues, or others may be seen."""
        return self._lookup.changes + self._readers.generation

    def _is_due(self, group: Assigned) -> bool:
        now = self.now()
        if group.unresolved() and now >= group.resolve_again_at:
            return True
        return self._changes != group.resolved_changes and now >= group.refresh_again_at

    def _take_pattern(self, group: Assigned, seen: ResolvedPattern, started: float) -> bool:
        # Looking at a million names may take seconds.
        now = self.now()
        took = now - started
        changed = seen.topology != group.topology or seen.resolved != group.resolved
        group.resolved_changes, group.resolved = seen.changes, seen.resolved
        group.refresh_again_at = now + max(_REFRESH_S, _SHARE * took)
        group.resolve_again_at = now + _SHARE_OF_NEW * took
        group.topology = seen.topology
        if changed:
            group.reads_others()
        return changed

    async def _finish_refresh(
        self, group: Assigned, work: Work[ResolvedPattern], started: float
    ) -> None:
        if not await self._finish(group, work):
            return
        async with group.lock:
            group.resolving = False
            if not self.there(group):
                return
            if self._take_pattern(group, work.result, started):
                group.epoch += 1
                self.assign_if_due(group)
                await self.log_changes(group)

    def _resolve_pattern(self, group: Assigned) -> Steps[ResolvedPattern]:
        changes, texts = self._changes, set(group.subscription_counts.regexes)
        known = group.resolved if changes == group.resolved_changes else {}
        subscriptions = group.subscription_counts.all()
        resolved = yield from self._resolved(texts, known)
        queues = yield from self._queues(subscriptions, resolved)
        parts = []
        for number, name in enumerate((yield from in_order(queues)), 1):
            queue = queues[name]
            parts.append(queue.queue_id + b"%d" % queue.partitions)
            if number % EVERY == 0:
                yield
        return ResolvedPattern(changes, resolved, crc32c(b"".join(parts)))

    def _resolved(self, texts: set[str], known: Resolved) -> Steps[Resolved]:
        """Return what each pattern matches: once for equal regex and audience."""
        names: dict[Hashable, frozenset[str]] = {}
        patterns: dict[Hashable, _Matching] = {}
        keys: dict[str, Hashable] = {}
        for number, text in enumerate(sorted(texts, key=known.__contains__, reverse=True), 1):
            regex, principal, host = pattern_of(text)
            audience = self._readers.audience(principal or ANONYMOUS, host)
            key = keys[text] = regex, audience.key
            if text in known:
                names[key] = known[text]
            elif key not in names and key not in patterns:
                patterns[key] = _Matching(compiled(regex).fullmatch, audience.sees, [])
            if number % _TEXTS == 0:
                yield
        yield from self._match(list(patterns.values()))
        names |= {key: frozenset(found) for key, (_, _, found) in patterns.items()}
        return {text: names[key] for text, key in keys.items()}

    def _match(self, patterns: list["_Matching"]) -> Steps[None]:
        """Find the queues whose names patterns match as a whole."""
        first: str | None = "" if patterns else None
        matched, room = 0, _MATCHES_MAX
        while first is not None:
            queues = list(islice(self._lookup.all(first), _NAMES))
            first = queues[-1].name + "\0" if len(queues) == _NAMES else None
            for queue in queues:
                if not queue.partitions:
                    continue
                for matches, sees, found in patterns:
                    if room and matches(queue.name) and sees(queue.name):
                        found.append(queue.name)
                        room -= 1
                    matched += 1
                    if matched % EVERY == 0:
                        yield
            yield
        if not room:
            _log.warning("regexes_match_too_many", matches_max=_MATCHES_MAX)

    def _queues(self, subscriptions: Subscriptions, resolved: Resolved) -> Steps[dict[str, Queue]]:
        """Return the queues there are of those subscribed to, by name."""
        found: dict[str, Queue] = {}
        for names in {id(names): names for names in _names(subscriptions, resolved)}.values():
            for number, name in enumerate(names, 1):
                queue = None if name in found else self._lookup.find(name)
                if queue is not None:
                    found[name] = queue
                if number % EVERY == 0:
                    yield
        return found

    # -- the assignment

    def assign_if_due(self, group: Assigned) -> None:
        """Make a target for a group's epoch, now or soon, if it may have one."""
        if group.may_assign():
            self.assign(group, self._made(group))

    def assign(self, group: Assigned, making: Steps[AssignmentResult]) -> None:
        """Make a target now, or beside what members ask for if that takes long."""
        started, work = self.now(), Work(making)
        if work.begin():
            group.take_target(work.result)
            return
        group.assigning = True
        self.later(lambda: self._assign_on(group, work, started))

    async def _assign_on(
        self, group: Assigned, work: Work[AssignmentResult], started: float
    ) -> None:
        if not await self._finish(group, work):
            return
        async with group.lock:
            group.assigning = False
            if self.there(group):
                group.take_target(work.result, self.now() - started)
                await self.log_changes(group)

    def _made(self, group: Assigned) -> Steps[AssignmentResult]:
        """Return a target for the members as they are when it is begun."""
        epoch, assignor, resolved = group.epoch, group.choose_assignor(), group.resolved
        group.begin_target()
        members = [(m.id, m.instance, m.topics, m.regex, m.target) for m in group.members.values()]
        queues = yield from self._queues(group.subscription_counts.all(), resolved)
        sizes: dict[QueueId, int] = {}
        for number, queue in enumerate(queues.values(), 1):
            sizes[queue.queue_id] = group.assignable(queue)
            if number % EVERY == 0:
                yield
        ids_of: dict[tuple[int, int], frozenset[QueueId]] = {}
        wishes = {}
        for number, (member_id, instance, topics, regex, before) in enumerate(members, 1):
            shared = (id(topics), id(resolved.get(regex)))
            if shared not in ids_of:
                ids_of[shared] = yield from _ids(_names([(topics, regex)], resolved), queues)
            wishes[member_id] = MemberSubscription(ids_of[shared], before, instance or member_id)
            if number % EVERY == 0:
                yield
        target: Target = yield from _ASSIGNORS[assignor](wishes, sizes)
        instances = {one[0]: one[1] for one in members if one[1] is not None}
        return AssignmentResult(epoch, assignor, target, instances)

    # -- going on

    def later(self, chore: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._waiting.append(chore)
        self._more.set()

    async def _finish(self, group: Assigned, work: Work[Result]) -> bool:
        return await finish(work, lambda: self.there(group))

    async def log_changes(self, group: Assigned) -> None:
        code = await self._log(group)
        if code:
            _log.warning("group_not_logged", group=group.id, reason=code.name)

    async def run(self) -> None:
        """Go on with what was not done at once."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._more = anyio.Event()
                while self._waiting:
                    tasks.start_soon(self._waiting.popleft())
                await self._more.wait()


def _names(subscriptions: Subscriptions, resolved: Resolved) -> list[Iterable[str]]:
    found: list[Iterable[str]] = []
    for topics, regex in subscriptions:
        found += [topics, resolved.get(regex, ())]
    return found


def _ids(groups: list[Iterable[str]], queues: dict[str, Queue]) -> Steps[frozenset[QueueId]]:
    found = set()  # frozen at the end, as hashing all of them at once takes long
    for names in groups:
        for number, name in enumerate(names, 1):
            if name in queues:
                found.add(queues[name].queue_id)
            if number % EVERY == 0:
                yield
    return frozenset(found)
