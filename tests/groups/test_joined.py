"""Nobody has all the groups that there may be."""

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.model.joined import JoinedGroups
from kproxy.loop.asking import ASKING, Asking


def test_one_client_cannot_have_all_joined_groups() -> None:
    """FAULT: who joined `groups_joined_max` groups kept everybody else from joining one."""
    groups: JoinedGroups[str] = JoinedGroups(8)
    before = ASKING.set(Asking("User:mallory"))
    try:
        for number in range(6):
            groups.check_room()
            groups[f"m{number}"] = "made"
        with pytest.raises(KafkaError) as refused:
            groups.check_room()
        assert refused.value.code == Code.COORDINATOR_NOT_AVAILABLE
        groups["m0"] = "downgraded"
        ASKING.set(Asking("User:alice"))
        groups.check_room()
        groups["hers"] = "made"
        for name in list(groups):
            del groups[name]
        assert not groups._parts._of
        assert not groups._holders
    finally:
        ASKING.reset(before)
