"""The owner of an instance id: one rule for both protocols."""

import pytest

from kproxy.common.errors import Code
from kproxy.groups.model.consumer_member import ConsumerMember
from kproxy.groups.model.static_members import StaticMembers


def member(member_id: str, instance: str | None) -> ConsumerMember:
    made = ConsumerMember(member_id)
    made.instance = instance
    return made


@pytest.mark.parametrize(
    ("instance", "member_id", "code"),
    [
        (None, "a", Code.NONE),
        (None, "nobody", Code.NONE),
        ("i", "a", Code.NONE),
        ("i", "b", Code.FENCED_INSTANCE_ID),
        ("i", "", Code.FENCED_INSTANCE_ID),
        ("other", "a", Code.UNKNOWN_MEMBER_ID),
    ],
)
def test_members_that_may_speak_for_an_instance(
    instance: str | None, member_id: str, code: Code
) -> None:
    members = StaticMembers[ConsumerMember]()
    members.add(member("a", "i"))
    members.add(member("c", None))
    assert members.fault(instance, member_id) == code


def test_a_member_that_goes_late_leaves_its_successor() -> None:
    members = StaticMembers[ConsumerMember]()
    before, after = member("a", "i"), member("b", "i")
    members.add(before)
    members.add(after)
    members.remove(before)
    assert members.find("i") is after
    members.remove(after)
    assert members.find("i") is None
