"""Another connection does not help a client that is to wait: with Kafka it does."""

from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_header, encode_request
from kproxy.security.quotas import CONSUMED, MUTATED, Quotas
from kproxy.server import metering
from tests.handlers.access.test_quotas import ALICE, Metered, change
from tests.shares.test_polls import ACCEPT, Member, a_queue


def creation(name: str, partitions: int) -> dict[str, Any]:
    topic = {
        "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (),
        "configs": (),
    }  # fmt: skip
    return {"topics": [topic], "timeout": 5000, "validate_only": False}


def owed_s(here: Metered, key: int, version: int, values: dict[str, Any]) -> float:
    header = decode_header(encode_request(key, version, 1, values)[4:])
    return metering.owed(here.worker.quotas, ALICE, header)


async def records(member: Member, *acks: Any) -> int:
    """Return how many the member is given."""
    return sum(last - first + 1 for first, last, _ in await member.given(0, *acks))


async def test_older_request_that_makes_queues_waits_for_what_others_made() -> None:
    """FAULT: a thousand connections made as much each as the quota lets one make in a day."""
    here = Metered()
    await here.set(MUTATED, 1, user="alice")
    assert owed_s(here, ApiKey.CREATE_TOPICS, 5, creation("a", 100)) == 0
    await here.call(ApiKey.CREATE_TOPICS, 5, creation("a", 100))
    grown = {"topics": [], "timeout": 5000, "validate_only": False}
    for key, version, values in (
        (ApiKey.CREATE_TOPICS, 5, creation("b", 1)), (ApiKey.CREATE_PARTITIONS, 2, grown),
        (ApiKey.DELETE_TOPICS, 4, {"topic_names": (), "timeout": 5000}),
    ):  # fmt: skip
        assert 80 < owed_s(here, key, version, values) < 100, key
    assert owed_s(here, ApiKey.CREATE_TOPICS, 7, creation("b", 1)) == 0, "it is told so at once"
    assert owed_s(here, ApiKey.LIST_GROUPS, 0, {}) == 0
    here.now += 100
    assert owed_s(here, ApiKey.CREATE_TOPICS, 5, creation("b", 1)) == 0


async def test_share_member_that_had_too_much_is_given_no_more_by_another_session() -> None:
    """FAULT: each connection was given as much again."""
    client, now = await a_queue(20), 1000.0
    worker = client.worker
    worker.quotas = Quotas(worker.security, lambda: now, worker.counters)
    values = {"entries": [change({"user": None}, {CONSUMED: 30})], "validate_only": False}
    assert not (await client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, values)).entries[0].error_code
    members = [Member(client, f"{number}") for number in range(5)]
    given = [await records(one) for one in members]
    assert given == [4, 4, 0, 0, 0], "the second may pass the limit once"
    assert await records(members[0], (0, 3, (ACCEPT,))) == 0
    assert [share.window.start for share in worker.shares] == [4], "what it says is taken"
    now += 30
    assert await records(members[2]) == 4
