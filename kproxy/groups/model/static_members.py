"""Static members of a group (KIP-345): which member an instance id belongs to.

One rule for both protocols, as Kafka's `validateMember` and `validateConsumerGroupMember`.
"""

from typing import Generic, Protocol, TypeVar

from kproxy.common.errors import Code


class _Member(Protocol):
    id: str
    instance: str | None


Member = TypeVar("Member", bound=_Member)


class StaticMembers(Generic[Member]):
    """The members of one group that have an instance id, by it."""

    __slots__ = ("_by_instance",)

    def __init__(self) -> None:
        self._by_instance: dict[str, Member] = {}

    def find(self, instance: str) -> Member | None:
        return self._by_instance.get(instance)

    def add(self, member: Member) -> None:
        """Give a member its instance id from now on; leave out a member without one."""
        if member.instance is not None:
            self._by_instance[member.instance] = member

    def remove(self, member: Member) -> None:
        """Remove a member that has gone; its instance id may be another's already."""
        if member.instance is not None and self._by_instance.get(member.instance) is member:
            del self._by_instance[member.instance]

    def fault(self, instance: str | None, member_id: str) -> Code:
        """Return why this member may not speak for an instance id; none without one."""
        if instance is None:
            return Code.NONE
        member = self._by_instance.get(instance)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if member.id == member_id else Code.FENCED_INSTANCE_ID
