"""The groups of one shard that have members, or are being joined: bounded, and nobody has all."""

from typing import TypeVar

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.asking import ASKING
from kproxy.security.parts import Parts

Group = TypeVar("Group")


class JoinedGroups(dict[str, Group]):
    """The groups with members, by id. Each counts for its maker until it is forgotten; a mere
    reader of its rows makes none.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._parts = Parts(most)
        self._holders: dict[str, str] = {}

    def check_room(self) -> None:
        """Raise KafkaError if there are too many, or too many of the one that asks."""
        if len(self) >= self._parts.most or not self._parts.may(ASKING.get().holder):
            raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "too many groups (groups_joined_max)")

    def __setitem__(self, group_id: str, group: Group) -> None:
        if group_id not in self:
            holder = self._holders[group_id] = ASKING.get().holder
            self._parts.take(holder)
        super().__setitem__(group_id, group)

    def __delitem__(self, group_id: str) -> None:
        super().__delitem__(group_id)
        self._parts.give_back(self._holders.pop(group_id))
