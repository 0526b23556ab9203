"""Access rules by their APIs, and what they do at once: open sessions, long polls."""

from typing import Any
from uuid import UUID

import anyio
import pytest
import structlog

from kproxy.protocol.api_keys import ApiKey
from kproxy.security.acls import Op, Pattern, Resource
from kproxy.security.peer import Peer
from kproxy.virtual.types import QueueId
from tests.bodies import creation, metadata
from tests.fakes import memory_worker
from tests.handlers.secured import ALICE, NOT_ALLOWED, ROOT, Secured, rule
from tests.harness import patient
from tests.present import present
from tests.wire import batch, fetch_values, produce_values


async def test_rules_are_made_told_and_dropped() -> None:
    here = Secured()
    read, write = rule(Op.READ), rule(Op.WRITE)
    assert await here.add(read, write, read) == [0, 0, 0]
    assert len(here.worker.security.acls) == 2
    assert await here.add(read) == [0]  # it is there already
    told = await here.rules()
    assert told.error_code == 0
    (resource,) = told.resources
    assert (resource.resource_type, resource.resource_name, resource.pattern_type) == (2, "q", 3)
    assert sorted(one.operation for one in resource.acls) == [Op.READ, Op.WRITE]
    gone = await here.drop(operation=Op.READ)
    (matching,) = gone.filter_results[0].matching_acls
    assert (matching.operation, matching.principal) == (Op.READ, "User:alice")
    assert len(here.worker.security.acls) == 1
    assert not (await here.drop(operation=Op.READ)).filter_results[0].matching_acls


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"resource_name": ""}, "Invalid empty resource name"),
    ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
    ({"resource_type": 1}, "Invalid resourceType ANY"),
    ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
    ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
    ({"operation": 1}, "Invalid operation ANY"),
    ({"operation": 77}, "Invalid operation UNKNOWN"),
    ({"permission_type": 1}, "Invalid permissionType ANY"),
    ({"principal": "alice"}, "Could not parse principal from `alice`"),
    ({"resource_name": "q" * 32_001}, "A name is too long"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
async def test_rules_that_are_none(wrong: dict[str, Any], text: str) -> None:
    here = Secured()
    values = {"creations": [rule(Op.READ) | wrong, rule(Op.READ)]}
    bad, good = (await here.call(ApiKey.CREATE_ACLS, 3, values, ROOT)).results
    assert int(bad.error_code) == 42
    assert str(bad.error_message).startswith(text)
    assert int(good.error_code) == 0


async def test_filters_that_are_none() -> None:
    here = Secured()
    assert int((await here.rules(operation=0)).error_code) == 42
    assert int((await here.drop(permission_type=0)).filter_results[0].error_code) == 42
    for part, told in (("resource_type_filter", "Unknown patternFilter."),
                       ("pattern_type_filter", "Unknown patternFilter."),
                       ("operation", "Unknown entryFilter."),
                       ("permission_type", "Unknown entryFilter.")):  # fmt: skip
        shown = await here.rules(**{part: 99})
        assert (int(shown.error_code), len(shown.resources)) == (0, 0), "as at Kafka"
        refused = (await here.drop(**{part: 99})).filter_results[0]
        assert (int(refused.error_code), refused.error_message) == (42, told)


async def test_only_who_may_alter_the_cluster_makes_rules() -> None:
    here = Secured()
    assert await here.add(rule(Op.READ), peer=ALICE) == [31]
    assert int((await here.rules(ALICE)).error_code) == 31
    cluster = {"resource_type": Resource.CLUSTER, "resource_name": "kafka-cluster"}
    assert await here.add(rule(Op.ALTER, **cluster)) == [0]
    assert await here.add(rule(Op.READ), peer=ALICE) == [0]
    assert int((await here.rules(ALICE)).error_code) == 0


async def test_without_an_authorizer_there_are_no_rules() -> None:
    here = Secured()
    here.worker = memory_worker()
    assert await here.add(rule(Op.READ)) == [54]
    assert int((await here.rules()).error_code) == 54
    assert await here.produce("q") == 0


async def test_below_the_level_rules_are_refused() -> None:
    here = Secured()
    here.worker.level.value = 6
    assert await here.add(rule(Op.READ)) == [35]


async def test_a_produce_makes_a_queue_only_where_that_is_allowed() -> None:
    here = Secured()
    assert await here.produce("q") == NOT_ALLOWED
    await here.add(rule(Op.WRITE))
    assert await here.produce("q") == 3
    assert here.worker.catalogue.find("q") is None
    await here.add(rule(Op.CREATE))
    assert await here.produce("q") == 0


async def test_an_open_session_is_asked_again_once_rules_change() -> None:
    here = Secured()
    await here.produce("q", ROOT)
    await here.add(rule(Op.READ))
    first = await here.call(ApiKey.FETCH, 12, fetch_values({("q", 0): 1}, epoch=0))
    (part,) = first.responses[0].partitions
    assert int(part.error_code) == 0

    async def polled(epoch: int) -> Any:
        more = fetch_values({}, session_id=first.session_id, epoch=epoch)
        return await here.call(ApiKey.FETCH, 12, more)

    assert not (await polled(1)).responses  # nothing is new
    await here.drop()
    revoked = await polled(2)
    assert int(revoked.responses[0].partitions[0].error_code) == NOT_ALLOWED
    assert not revoked.responses[0].partitions[0].records
    await here.produce("q", ROOT)
    again = await polled(3)
    assert int(again.responses[0].partitions[0].error_code) == NOT_ALLOWED
    await here.add(rule(Op.READ))
    allowed = await polled(4)
    assert allowed.responses[0].partitions[0].records


async def test_rest_of_a_deleted_queue_is_given_to_nobody_who_may_not_read_it() -> None:
    """A shard may have it still, and its name, which rules are about, is forgotten already."""
    here = Secured()
    await here.produce("q", ROOT)
    ident = UUID(bytes=bytes(present(here.worker.catalogue.find("q")).queue_id))
    await here.add(rule(Op.READ))
    first = await here.call(ApiKey.FETCH, 13, fetch_values({(ident, 0): 1}, epoch=0))
    await here.produce("q", ROOT)
    await here.drop()
    here.worker.catalogue.find_id = lambda _: None  # type: ignore[method-assign]
    more = fetch_values({}, session_id=first.session_id, epoch=1)
    (topic,) = (await here.call(ApiKey.FETCH, 13, more)).responses
    assert int(topic.partitions[0].error_code) == 100
    assert not topic.partitions[0].records


async def test_a_long_poll_gives_nothing_that_is_forbidden_by_then() -> None:
    here = Secured()
    await here.produce("q", ROOT)
    await here.add(rule(Op.READ))
    told: list[Any] = []

    async def poll() -> None:
        values = fetch_values({("q", 0): 1}, wait_ms=5000)
        told.append(await here.call(ApiKey.FETCH, 12, values))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        while not here.worker.long_polls:
            await anyio.sleep(0.01)
        await here.drop()
        await here.produce("q", ROOT)
    (part,) = told[0].responses[0].partitions
    assert int(part.error_code) == NOT_ALLOWED
    assert not part.records


async def test_a_session_is_nobody_elses() -> None:
    here = Secured()
    await here.produce("q", ROOT)
    await here.add(rule(Op.READ))
    mine = await here.call(ApiKey.FETCH, 12, fetch_values({("q", 0): 0}, epoch=0))
    more = fetch_values({}, session_id=mine.session_id, epoch=1)
    bob = ALICE._replace(principal="User:bob")
    assert int((await here.call(ApiKey.FETCH, 12, more, bob)).error_code) == 70


async def test_an_id_tells_no_more_than_at_kafka() -> None:
    here = Secured()
    await here.produce("q", ROOT)
    queue = present(here.worker.catalogue.find("q"))
    values = metadata([UUID(bytes=bytes(queue.queue_id))], create=False)
    (topic,) = (await here.call(ApiKey.METADATA, 12, values)).topics
    assert (int(topic.error_code), topic.name) == (NOT_ALLOWED, None)
    assert not topic.partitions


class Heartbeats:
    """Members that subscribe to what matches q-: of one group, or each of its own."""

    def __init__(self, here: Secured, *, apart: bool = False) -> None:
        self._here, self._apart = here, apart
        self._epochs: dict[Peer, int] = {}
        self._names = {queue.queue_id: queue.name for queue in here.worker.catalogue.all()}

    async def assigned(self, peer: Peer) -> set[str] | None:
        """Return the names of the queues that a member is given now, None without news."""
        epoch = self._epochs.get(peer, 0)
        values = {
            "group_id": "g" + peer.principal * self._apart,
            "member_id": peer.principal, "member_epoch": epoch,
            "instance_id": None, "rack_id": None, "rebalance_timeout": 60_000 if not epoch else -1,
            "subscribed_topic_names": None, "subscribed_topic_regex": None if epoch else "q-.",
            "server_assignor": None, "topic_partitions": None if epoch else [],
        }  # fmt: skip
        told = await self._here.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, values, peer)
        assert int(told.error_code) == 0, told.error_message
        self._epochs[peer] = told.member_epoch
        if told.assignment is None:
            return None
        parts = told.assignment.topic_partitions
        return {self._names[QueueId(one.topic_id.bytes)] for one in parts}


async def test_members_with_one_expression_get_what_each_may_know_of() -> None:
    """At Kafka all get what whoever had it resolved may describe (KAFKA-19147 and after)."""
    here = Secured(group_consumer_assignment_interval_ms=0)
    for name in ("q-a", "q-b", "q-c"):
        await here.produce(name, ROOT)
    bob = Peer("User:bob", "10.0.0.2")
    group = {"resource_type": Resource.GROUP, "resource_name": "g", "principal": "User:*"}
    await here.add(
        rule(Op.READ, "g", **group),
        rule(Op.DESCRIBE, "q-a"),
        rule(Op.DESCRIBE, "q-b", principal=bob.principal),
    )
    groups = Heartbeats(here)
    assert await groups.assigned(ALICE) == {"q-a"}
    his = await groups.assigned(bob)
    assert his == {"q-b"}
    values = {"group_ids": ["g"], "include_authorized_operations": False}
    (told,) = (await here.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, values, ROOT)).groups
    assert {member.subscribed_topic_regex for member in told.members} == {"q-."}
    (hidden,) = (await here.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, values)).groups
    assert int(hidden.error_code) == NOT_ALLOWED
    assert not hidden.members
    await here.add(rule(Op.DESCRIBE, "q-c", principal=bob.principal))
    with anyio.fail_after(patient(10)):
        while his != {"q-b", "q-c"}:
            await anyio.sleep(0.2)
            his = await groups.assigned(bob) or his


async def test_an_expression_from_before_there_were_rules_sees_what_anybody_may() -> None:
    """Nobody knows whose it is. A super user is known: it may be none by then."""
    here = Secured(group_consumer_assignment_interval_ms=0)
    for name in ("q-a", "q-b"):
        await here.produce(name, ROOT)
    groups = Heartbeats(here, apart=True)
    here.worker.authorizer.enabled = False
    assert await groups.assigned(ALICE) == {"q-a", "q-b"}
    here.worker.authorizer.enabled = True
    assert await groups.assigned(ROOT) == {"q-a", "q-b"}
    group = {"resource_type": Resource.GROUP, "resource_pattern_type": Pattern.PREFIXED}
    await here.add(
        rule(Op.READ, "g", principal="User:*", **group),
        rule(Op.DESCRIBE, "q-a", principal="User:*"),
        rule(Op.DESCRIBE, "q-b"),
    )
    given: set[str] | None = None
    with anyio.fail_after(patient(10)):
        while given is None:
            await anyio.sleep(0.2)
            given = await groups.assigned(ALICE)
    assert given == {"q-a"}
    here.worker.authorizer._super_users = frozenset()
    here.worker.authorizer._permits.clear()
    here.worker.security.generation += 1
    given = None
    with anyio.fail_after(patient(10)):
        while given is None:
            await anyio.sleep(0.2)
            given = await groups.assigned(ROOT)
    assert given == {"q-a"}


async def test_admin_requests_are_logged() -> None:
    here = Secured()
    with structlog.testing.capture_logs() as logs:
        for name in ("q", "q"):
            await here.call(ApiKey.CREATE_TOPICS, 7, creation(name), ROOT)
            await here.call(ApiKey.CREATE_TOPICS, 7, creation(name, dry=True), ROOT)
        await here.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g"]})
        await here.add(rule(Op.READ))
        await here.drop()
    told = [(log["event"], log.get("names"), log.get("error_code"), log["host"]) for log in logs]
    assert told == [
        ("admin_request", ["q"], 0, ROOT.host),
        ("admin_request", ["q"], 36, ROOT.host),
        ("not_authorized", None, None, ALICE.host),
        ("access_rules_created", None, None, ROOT.host),
        ("access_rules_deleted", None, None, ROOT.host),
    ]
    assert logs[0]["principal"] == "User:root"
    assert logs[0]["api"] == "CREATE_TOPICS"
    off = Secured()
    off.worker = memory_worker()
    with structlog.testing.capture_logs() as logs:
        await off.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g"]})
    assert not logs


async def test_a_transactional_batch_without_an_id_is_refused_for_that_first() -> None:
    """As with Kafka 4.3.1: 53 for the whole request, whatever the client may write to."""
    here = Secured()
    records = batch(b"v", producer_id=1 << 40, epoch=0, sequence=0, attributes=16)
    told = await here.call(ApiKey.PRODUCE, 9, produce_values("q", records))
    assert told.responses[0].partition_responses[0].error_code == 53
    told = await here.call(ApiKey.PRODUCE, 9, produce_values("q", batch(b"v")))
    assert told.responses[0].partition_responses[0].error_code == NOT_ALLOWED


@pytest.mark.parametrize("many", [1, 600])
@pytest.mark.parametrize("secured", [True, False])
async def test_one_transactional_batch_without_an_id_has_all_of_its_request_refused(
    secured: bool, many: int
) -> None:
    """FAULT: only from the first queue on that the client may not write to, and only that batch
    where there is no authorizer. Kafka 4.3.1 answers 53 for all, and stores nothing.
    """
    here = Secured()
    if not secured:
        here.worker = memory_worker()
    await here.produce("free", ROOT)
    if secured:
        await here.add(rule(Op.WRITE, "free"), rule(Op.CREATE, "free"))
    orphan = batch(b"v", producer_id=1 << 40, epoch=0, sequence=0, attributes=16)
    topics = [
        {"name": name, "partition_data": [{"index": 0, "records": records}] * times}
        for name, records, times in (("free", batch(b"v"), many), ("other", orphan, 1),
                                     ("free-2", batch(b"v"), 1))
    ]  # fmt: skip
    values = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}
    told = await here.call(ApiKey.PRODUCE, 9, values)
    codes = {part.error_code for one in told.responses for part in one.partition_responses}
    assert codes == {53}
    queue = present(here.worker.catalogue.find("free"))
    row = present(here.worker.shard("free", 0).state.partition((queue.queue_id, 0)))
    assert row.next_offset == 1


@pytest.mark.parametrize("version", [12, 17])
async def test_a_fetch_as_from_another_broker_is_refused(version: int) -> None:
    """As with Kafka 4.3.1: 29 without CLUSTER_ACTION, and who has that is no replica."""
    here = Secured()
    await here.produce("q", ROOT)
    await here.add(rule(Op.READ))
    queue = present(here.worker.catalogue.find("q"))
    name = "q" if version < 13 else UUID(bytes=bytes(queue.queue_id))
    for replica, peer, code in ((-1, ALICE, 0), (1, ALICE, NOT_ALLOWED), (1, ROOT, 6)):
        values = fetch_values({(name, 0): 0})
        values |= (
            {"replica_id": replica} if version < 15
            else {"replica_state": {"replica_id": replica, "replica_epoch": -1}}
        )  # fmt: skip
        told = await here.call(ApiKey.FETCH, version, values, peer)
        part = told.responses[0].partitions[0]
        assert part.error_code == code
        assert bool(part.records) == (not code)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_features_that_are_not_updated_have_no_results(version: int) -> None:
    """As with Kafka 4.3.1: those that are have one each, up to version 1."""
    here = Secured()

    async def update(name: str, level: int, peer: Peer) -> Any:
        kind = {"allow_downgrade": False} if version == 0 else {"upgrade_type": 1}
        asked = {"feature": name, "max_version_level": level, **kind}
        values: dict[str, Any] = {"timeout": 1000, "feature_updates": [asked]}
        if version:
            values["validate_only"] = False
        return await here.call(ApiKey.UPDATE_FEATURES, version, values, peer)

    for name, level, peer, code in (
        ("no.such", 1, ALICE, 31), ("no.such", 1, ROOT, 95), ("transaction.version", 2, ROOT, 0),
    ):  # fmt: skip
        told = await update(name, level, peer)
        assert told.error_code == code
        assert len(getattr(told, "results", ())) == (code == 0 and version < 2)
