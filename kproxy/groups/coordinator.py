"""The coordinator of one shard's groups: it keeps them in memory and logs what must survive.

It keeps only groups that have members or joining members. When the worker gains the shard, the
coordinator reads the groups that have members, so that the session of a member that never comes
back ends. When the worker loses the shard, the coordinator sends every waiting request to the new
coordinator.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import anyio
import structlog

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.groups.assigning.regex import Everybody, Readers
from kproxy.groups.assigning.subscriptions import SubscriptionResolver
from kproxy.groups.assigning.task_resolver import TaskResolver
from kproxy.groups.model.classic_group import ClassicGroup
from kproxy.groups.model.consumer_group import ConsumerGroup
from kproxy.groups.model.group import Group
from kproxy.groups.model.joined import JoinedGroups
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.model.streams_group import StreamsGroup
from kproxy.groups.requests.migration import downgraded, upgraded
from kproxy.groups.upkeep.background_log import BackgroundLog
from kproxy.groups.upkeep.group_deletion import GroupDeletions
from kproxy.groups.upkeep.group_log import GroupLog
from kproxy.groups.upkeep.offset_expiry import OffsetExpiry
from kproxy.groups.upkeep.restoring import restored
from kproxy.groups.upkeep.share_initialisation import Landing, OwnShard, ShareInitialisation
from kproxy.groups.upkeep.share_removal import ShareRemoval
from kproxy.groups.upkeep.timers import Timers
from kproxy.loop.pace import Pace
from kproxy.loop.steps import Steps, at_once, done
from kproxy.metadata.catalogue import Lookup
from kproxy.metadata.group_settings import GroupSettings
from kproxy.protocol.guard import TEXT_BYTES_MAX
from kproxy.shard.shard import Shard
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows.groups import TOPOLOGY_ROW, GroupRow, decode_group
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import name_of

_log = structlog.get_logger()


_KINDS: dict[str, "type[ConsumerGroup | ShareGroup | StreamsGroup]"]
_KINDS = {"consumer": ConsumerGroup, "share": ShareGroup, "streams": StreamsGroup}
_KEPT_EMPTY = ("share", "streams")
"""The kinds of groups that have more than members."""


def _is_other(group: Group | None, head: GroupRow | None) -> bool:
    """Whether a group takes no members of the classic or the consumer protocol."""
    if isinstance(group, ShareGroup | StreamsGroup):
        return True
    return head is not None and head.kind in _KEPT_EMPTY


def storage_code(code: Code) -> Code:
    """Return the code that Kafka's coordinator answers with when its log cannot be written."""
    if code == Code.MESSAGE_TOO_LARGE:
        return Code.UNKNOWN_SERVER_ERROR
    return Code.COORDINATOR_NOT_AVAILABLE


class GroupServices(NamedTuple):
    """The services of a worker that the coordinators of all its shards need."""

    config: Config
    lookup: Lookup
    now_ms: Callable[[], int]
    unique_id: Callable[[], object] = uuid.uuid4
    """Makes what is unique in a member's id."""
    landing: Landing | None = None
    """The way to the shards of queues; without it they all lie in the coordinator's."""
    settings_of: Callable[[str], GroupSettings] = lambda group_id: GroupSettings()
    readers: Readers = Everybody()
    """The rules by which somebody may know of a queue."""


class Coordinator:
    """The groups of one shard while this worker serves it."""

    def __init__(
        self, shard: Shard, services: GroupServices, sooner: Callable[[], None] = lambda: None
    ) -> None:
        """Set up; call `sooner` when a timer is due before all others."""
        config, lookup, now_ms, unique_id, landing, settings_of, readers = services
        self.shard = shard
        self.claim_offset = shard.claim_offset
        self.config = config
        self.lookup = lookup
        self.now_ms = now_ms
        self.unique_id = unique_id
        self.timers = Timers(sooner)
        self.groups: JoinedGroups[Group] = JoinedGroups(config.groups_joined_max)
        self._loading: dict[str, anyio.Event] = {}
        changes = GroupLog(shard, self.has, self.head, self.forget, self._read_again, now_ms)
        self.log, self.log_changes, self.stamp = changes.log, changes.log_changes, changes.stamp
        self.background = BackgroundLog(self)
        self.soon = self.background.soon
        self.fence_soon = self.background.fence_soon
        self.subscriptions = SubscriptionResolver(
            lookup, self.now, self.has, self.log_changes, readers
        )
        self.tasks = TaskResolver(lookup, self.subscriptions)
        self.settings_of = settings_of
        self.landing = landing or OwnShard(shard)
        self.shares = ShareInitialisation(
            shard, self.landing, lookup, self.subscriptions, now_ms,
            lambda group_id: settings_of(group_id).auto_offset_reset, self.has, self.stamp,
        )  # fmt: skip
        self.removal = ShareRemoval(shard, self.landing, lookup, now_ms)
        self.deletions = GroupDeletions(shard, self.head, now_ms, self.removal.drop_all)
        self.initial_delay_s = config.group_initial_rebalance_delay_ms / 1000

    def now(self) -> float:
        """Return the seconds of the loop's clock, by which the timers run."""
        return anyio.current_time()

    def new_member_id(self, prefix: str) -> str:
        """Return a member id that none had before, as Kafka makes it; it fits what answers have."""
        unique = f"-{self.unique_id()}"
        room = TEXT_BYTES_MAX - len(unique)
        return prefix.encode()[:room].decode(errors="ignore") + unique

    def has(self, group: Group) -> bool:
        return self.groups.get(group.id) is group

    # -- finding

    def head(self, group_id: str) -> GroupRow | None:
        data = self.shard.state.get(group_rows.group_key(group_id))
        return None if data is None else decode_group(data)

    def going(self, group_id: str) -> bool:
        """Return whether a group is being deleted. Requests for it are refused until it is gone."""
        return group_id not in self.groups and self.deletions.going(group_id)

    def find(self, group_id: str) -> Group | None:
        """Return a group that has members or is being joined; None for any other."""
        group = self.groups.get(group_id)
        if group is None:
            head = self.head(group_id)
            if head is not None and head.members:
                group = self.groups[group_id] = at_once(self._read_group(group_id, head))
        return group

    async def load(self, group_id: str, *, empty: bool = False) -> Group | None:
        """Return what `find` finds; read a group of many members in slices.

        `empty`: one without members, too, if it has something else.
        """
        while group_id not in self.groups:
            head = self.head(group_id)
            if head is None or not (head.members or (empty and head.kind in _KEPT_EMPTY)):
                return None
            if group_id in self._loading:
                await self._loading[group_id].wait()
                continue
            self._loading[group_id] = anyio.Event()
            try:
                group = await done(self._read_group(group_id, head))
            finally:
                self._loading.pop(group_id).set()
            now = self.head(group_id)
            if group_id in self.groups or now is None or now.version != head.version:
                group.end(Code.NOT_COORDINATOR)  # somebody could not wait
            else:
                self.groups[group_id] = group
        return self.groups[group_id]

    async def _load_logged(self, group_id: str, *, empty: bool = False) -> Group | None:
        """Return the group. One without members is given once nothing of it goes to the log."""
        while (group := await self.load(group_id, empty=empty)) is not None and not group.members:
            async with group.lock:
                if self.has(group):
                    return group
        return group

    async def open_classic(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        """Return the group, or a new one if it has no members; a consumer group has some.

        A streams group without members becomes a classic one.
        """
        group = await self._load_logged(group_id)
        if isinstance(group, ClassicGroup) or (isinstance(group, ConsumerGroup) and group.members):
            return group  # somebody may have joined while another left
        head = self.head(group_id)
        emptied = group is None and head is not None and head.kind == "streams" and not head.members
        if _is_other(group, head) and not emptied:
            raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
        self.groups.check_room()
        made = ClassicGroup(group_id, self)
        if head is not None:
            made.version = head.version
            made.generation = head.values.get("generation", 0)
            made.protocol_type = None if emptied else head.values.get("protocol_type")
        if emptied:
            made.logged.add(TOPOLOGY_ROW)  # it goes with what is logged first
        self.groups[group_id] = made
        return made

    async def open_consumer(self, group_id: str, *, create: bool) -> ConsumerGroup:
        """Return the group; `create` makes or upgrades one. Raise KafkaError."""
        group = await self._load_logged(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        head = self.head(group_id)
        if _is_other(group, head):
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if not create and head is not None and head.kind == "consumer":
            raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"Group {group_id} has no members.")
        if not create:
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        assert group is None or isinstance(group, ClassicGroup)
        if group is not None and group.members:
            async with group.lock:  # a rebalance of it may be on its way to the log
                if not self.has(group):
                    raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)
                made = await done(upgraded(group, self, self.lookup))
                if not self.has(group):
                    raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)
                self.groups[group_id] = made
                return made
        self.groups.check_room()
        made = ConsumerGroup(group_id, self)
        if group is not None:
            made.gone = set(group.logged)  # that it is empty may not have been logged yet
        if head is not None:
            made.version = head.version
            made.epoch = made.target_epoch = head.values.get("epoch", made.epoch)
        self.groups[group_id] = made
        return made

    async def open_share(self, group_id: str, *, create: bool) -> ShareGroup | None:
        """Return the group; without `create` None if nobody is a member of it. Raise KafkaError.

        It may be without members still: who opens it forgets it, if nobody joins.
        """
        head = self.head(group_id)
        if create and group_id not in self.groups and not (head and head.members):
            self.groups.check_room()
        group = await self._load_logged(group_id, empty=create)
        if isinstance(group, ShareGroup):
            return group
        head = self.head(group_id)
        if group is not None or (head is not None and head.kind != "share"):
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        if not create:
            return None
        made = self.groups[group_id] = ShareGroup(group_id, self)
        made.since = self.shard.applied_through.next_offset
        return made

    async def open_streams(self, group_id: str, *, create: bool) -> StreamsGroup | None:
        """Return the group; without `create` None if nobody is a member of it. Raise KafkaError.

        A classic group without members becomes one. It may be without members still: who opens it
        forgets it, if nobody joins.
        """
        head = self.head(group_id)
        if create and group_id not in self.groups and not (head and head.members):
            self.groups.check_room()
        group = await self._load_logged(group_id, empty=create)
        if isinstance(group, StreamsGroup):
            return group
        head, kinds = self.head(group_id), ("streams", "classic", "offsets")
        other = head is not None and head.kind not in (kinds if create else kinds[:1])
        if (
            other
            or (group is not None and not (create and isinstance(group, ClassicGroup)))
            or (group is not None and group.members)
        ):
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        if not create:
            return None
        made = StreamsGroup(group_id, self)
        if isinstance(group, ClassicGroup):
            made.gone = set(group.logged)  # that it is empty may not have been logged yet
        if head is not None:
            made.version = head.version
        self.groups[group_id] = made
        return made

    def _read_group(self, group_id: str, head: GroupRow) -> Steps[Group]:
        kind: Callable[[str, Coordinator], Group] = _KINDS.get(head.kind, ClassicGroup)
        return restored(kind(group_id, self), head, self.shard)

    def listed(self, first: str = "") -> Iterator[tuple[str, GroupRow]]:
        """Yield all groups that have members or offsets, by id, from this id on."""
        start, end = group_rows.group_key(first), RowKind.GROUP.range()[1]
        for key, data in self.shard.kv.scan(start, end):
            yield name_of(key), decode_group(data)

    def _read_again(self, group: Group, code: Code) -> None:
        """Drop the group, to read its rows again, also if nobody asks: they are the truth."""
        _log.warning("group_read_again", group=group.id, reason=code.name)
        if group.id in self.groups:
            del self.groups[group.id]
        group.end(code)
        self.background.read_soon(group.id)

    def forget(self, group: Group) -> None:
        if self.has(group):
            del self.groups[group.id]
            group.alarms.end()

    async def delete(self, group_id: str) -> Code:
        """Delete a group with all its offsets, unless it has members.

        An id that was given out to join with is void then, as with Kafka.
        """
        found = False
        while (group := await self.load(group_id)) is not None:
            found = True
            if group.members:
                return Code.NON_EMPTY_GROUP
            async with group.lock:
                code = await self._log_emptiness(group) if self.has(group) else Code.NONE
                if not code and not group.members:
                    self.forget(group)
            if code:
                return code
        if found and self.head(group_id) is None:
            return Code.NONE  # nothing of it was logged
        return await self.deletions.delete(group_id)

    async def _log_emptiness(self, group: Group) -> Code:
        """Log that a group is empty, if its rows say otherwise, and forget it."""
        head, code = self.head(group.id), Code.NONE
        if head is not None and head.members:
            code = await self.log_changes(group)
        if group.idle:
            self.forget(group)
        return code

    # -- groups whose coordinator assigns

    async def downgrade_if_due(self, group: ConsumerGroup) -> None:
        """Make the group classic again once only members of the classic protocol are left."""
        async with group.lock:
            if not self.has(group) or not group.only_classic:
                return
            classic = await done(downgraded(group, self, self.lookup))
            if not self.has(group):
                return
            self.groups[group.id] = classic
            group.end(Code.NOT_COORDINATOR)
        code = await self.log(classic)
        if code:
            _log.warning("group_not_logged", group=group.id, reason=code.name)
        else:
            classic.rebalance()

    async def forget_gone_queues(self, group_id: str, version: int) -> None:
        """Remove what is kept of deleted queues for a share group."""
        gone = await self.removal.forget_gone(group_id, version)
        group = self.groups.get(group_id)
        if isinstance(group, ShareGroup):
            for queue_id in gone:
                group.note_initialised(queue_id, 0)

    # -- running

    async def run(self) -> None:
        """Read the groups with members, then log what no request waits for, until cancelled."""
        await self._take_up()
        async with anyio.create_task_group() as tasks:
            expiry = OffsetExpiry(
                self.shard, self.config, self.lookup, self.now_ms, self.load, self.going,
                self.forget_gone_queues,
            )  # fmt: skip
            tasks.start_soon(expiry.run)
            tasks.start_soon(self.deletions.run)
            tasks.start_soon(self.subscriptions.run)
            await self.background.run()

    async def _take_up(self) -> None:
        (start, end), pace = RowKind.MEMBER.range(), Pace()
        while True:
            key = next((key for key, _ in self.shard.kv.scan(start, end)), None)
            if key is None:
                return
            group = group_rows.group_of_member(key)
            await self.load(group)
            start = group_rows.member_prefix(group) + b"\xff"
            await pace.step()

    def end(self, code: Code) -> None:
        self.deletions.end()
        groups, self.groups = self.groups, JoinedGroups(self.config.groups_joined_max)
        for group in groups.values():
            group.end(code)
