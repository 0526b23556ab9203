"""A streams group's topics: who is told of them, and whose rights make them."""

from typing import Any

from kproxy.common.errors import Code
from kproxy.handlers.common.permitted import HIDDEN
from kproxy.protocol.api_keys import ApiKey
from kproxy.security.acls import Op, Resource
from kproxy.security.peer import Peer
from tests.bodies import creation
from tests.handlers.secured import ALICE, ROOT, Secured, rule
from tests.kafka.groups.streams import part, topic


async def beat(here: Secured, peer: Peer, member: str, *topics: str, **more: Any) -> Any:
    parts = tuple(part(name, name) for name in topics)
    values = {
        "group_id": "g", "member_id": member, "member_epoch": 0, "endpoint_information_epoch": -1,
        "instance_id": None, "rack_id": None, "rebalance_timeout": 5000,
        "topology": {"epoch": 1 if peer is ROOT else 0, "subtopologies": parts},
        "active_tasks": (), "standby_tasks": (), "warmup_tasks": (), "process_id": member,
        "user_endpoint": {"host": member, "port": 1}, "client_tags": (), "task_offsets": None,
        "task_end_offsets": None, "shutdown_application": False,
    }  # fmt: skip
    answer = await here.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, values | more, peer)
    assert not answer.error_code, answer
    return answer


async def secured() -> Secured:
    here = Secured(group_streams_initial_rebalance_delay_ms=0)
    await here.call(ApiKey.CREATE_TOPICS, 7, creation("q"), ROOT)
    await here.add(
        rule(Op.READ, "g", resource_type=Resource.GROUP), rule(Op.DESCRIBE, "q"),
    )  # fmt: skip
    return here


async def test_a_status_names_no_topic_that_a_member_may_not_know_of() -> None:
    """FAULT: a member with another topology was told the sources that are missing."""
    here = await secured()
    told = await beat(here, ROOT, "one", "secret")
    assert "secret" in told.status[0].status_detail
    told = await beat(here, ALICE, "two", "q")
    assert [one.status_detail for one in told.status if one.status_code == 1] == [HIDDEN]
    await here.add(rule(Op.DESCRIBE, "secret"))
    told = await beat(here, ALICE, "two", "q")
    assert "secret" in told.status[-1].status_detail


async def test_an_endpoint_names_no_topic_that_a_member_may_not_know_of() -> None:
    """FAULT: a member with another topology was told what the others read."""
    here = await secured()
    await here.call(ApiKey.CREATE_TOPICS, 7, creation("secret"), ROOT)
    await beat(here, ROOT, "one", "q", "secret")
    told = await beat(here, ROOT, "one", "q", "secret")
    served = told.partitions_by_user_endpoint[0].active_partitions
    assert {one.topic for one in served} == {"q", "secret"}
    told = await beat(here, ALICE, "two", "q")
    seen = [one for end in told.partitions_by_user_endpoint for one in end.active_partitions]
    assert {one.topic for one in seen} == {"q"}


async def test_a_member_makes_no_topics_that_only_another_one_has_named() -> None:
    """FAULT: who had no right to make a topic described it, with settings, and another made it."""
    here = await secured()
    await here.add(rule(Op.DESCRIBE, "orders"))
    changelog = topic("orders", retention_ms="1")
    parts = (part("0", "q", state_changelog_topics=(changelog,)),)
    await beat(here, ALICE, "two", topology={"epoch": 5, "subtopologies": parts})
    await beat(here, ROOT, "one", "q")
    assert not here.worker.catalogue.exists("orders")
    await beat(here, ROOT, "three", topology={"epoch": 5, "subtopologies": parts})
    assert here.worker.catalogue.exists("orders")


async def test_a_description_of_a_topology_needs_the_right_to_read_the_group() -> None:
    """Kafka 4.4 has this API, so the matrix of Kafka 4.3.1 has no line for it."""
    here = await secured()
    values = {
        "group_id": "other", "member_id": "m", "topology_epoch": 0,
        "topology_description": {"subtopologies": (), "global_stores": ()},
    }  # fmt: skip
    key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
    refused = await here.call(key, 0, values, ALICE)
    assert refused.error_code == Code.GROUP_AUTHORIZATION_FAILED
    answered = await here.call(key, 0, values | {"group_id": "g"}, ALICE)
    assert answered.error_code == Code.UNSUPPORTED_VERSION
