"""The versions of requests that came with Kafka 4.4: answers as a real Kafka 4.4.0 gives them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.newer import REQUESTS
from tests.harness import Served
from tests.kafka.alike import alike, same
from tests.kafka.at_versions import groups, transactions
from tests.kafka.at_versions.admin import api_versions
from tests.kafka.at_versions.asked import Asked, versions
from tests.kafka.at_versions.differences import without
from tests.kafka.at_versions.test_every_version_like_kafka import coordinators
from tests.kafka.canonical import unheard
from tests.kafka.cluster import Cluster
from tests.kafka.cluster import name as name_of
from tests.kafka.groups import streams
from tests.kafka.groups.members import Classic, Modern, known
from tests.kafka.groups.streams import Thread, part
from tests.kafka.groups.test_group_configs_like_kafka import SET, alter
from tests.kafka.recorded import NEWEST, Recorded, Target
from tests.kafka.transactions.producer import Producer, alike_in_transactions
from tests.wire import Wire

KAFKA = NEWEST
SITUATIONS: dict[ApiKey, Callable[[Asked], None]] = {
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.TXN_OFFSET_COMMIT: transactions.offset_commit,
    ApiKey.STREAMS_GROUP_HEARTBEAT: groups.streams_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: groups.streams_describe,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: groups.topology_description,
}


@pytest.mark.parametrize("api", SITUATIONS, ids=lambda api: api.name.lower())
def test_answers(recorded: Recorded, server: Served, api: ApiKey) -> None:
    def ask(target: Target) -> list[Any]:
        with Wire(target.host, target.port) as wire:
            with unheard():
                coordinators(wire)
            asked = Asked(wire, recorded.name, newer=True)
            SITUATIONS[api](asked)
            assert asked.seen[api] == set(versions(api, newer=True))
            return asked.said

    theirs, ours, _ = without(*recorded.both(ask, server))
    same(theirs, ours)


def test_every_newer_version_is_asked() -> None:
    assert {key for key, _ in REQUESTS} == set(SITUATIONS)


@alike
def test_a_client_says_whom_it_means(wire: Wire, queue: str) -> list[Any]:
    """The node of an address may be another one than the client knows (KIP-1242)."""
    with unheard():
        answer = wire.metadata(queue, create=False)
        cluster, node = answer.cluster_id, answer.brokers[0].node_id
    said = []
    software = {"client_software_name": "some", "client_software_version": "1"}
    for whose in (None, "right", "other", ""):
        for which in (-1, 0, 1, -2):
            with unheard():
                answer = wire.call(ApiKey.API_VERSIONS, 5, software | {
                    "cluster_id": cluster if whose == "right" else whose,
                    "node_id": which if which < 0 else node + which,
                })  # fmt: skip
            told = len(answer.api_keys) > 0, answer.finalized_features_epoch >= 0
            said.append(f"{whose} {which}: {answer.error_code.name} {told}")
            with unheard():
                wire.metadata(queue, create=False)  # the connection stays
    return said


@alike_in_transactions
def test_offsets_by_members(cluster: Cluster, queue: str) -> None:
    """A member is told of its fault as it is by OffsetCommit (KIP-1319)."""
    wire = cluster.wire
    with unheard():
        known(wire, queue)
        topic_id = wire.metadata(queue, create=False).topics[0].topic_id
    part = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1,
            "committed_metadata": ""}  # fmt: skip
    topics = [{"topic_id": topic_id, "partitions": [part]}]
    modern = Modern(wire, queue + "-modern", "one", queue)
    modern.beat()
    classic = Classic(wire, queue + "-classic")
    classic.join()
    classic.sync({classic.id: b""})
    for group, member, epoch in (
        (modern.group, "one", modern.epoch), (classic.group, classic.id, classic.generation),
        (queue + "-none", "one", 1),
    ):  # fmt: skip
        producer = Producer(cluster, group).init()
        for who in (member, "stranger", ""):
            for by in (0, -1, 1, -epoch - 1):
                values = producer._named() | {
                    "group_id": group, "generation_id": epoch + by, "member_id": who,
                    "group_instance_id": None, "topics": topics,
                }  # fmt: skip
                with unheard():
                    answer = cluster.coordinated(
                        group, ApiKey.TXN_OFFSET_COMMIT, 6, values, key_type=0,
                        codes=lambda a: {int(a.topics[0].partitions[0].error_code)},
                    )  # fmt: skip
                (told,) = answer.topics
                assert told.topic_id == topic_id
                cluster.say(f"{group} by {who != ''} {who == 'stranger'} {by}",
                            name_of(told.partitions[0].error_code))  # fmt: skip
        producer.abort()
    modern.close()
    classic.wire.socket.close()


@alike
def test_settings_of_groups(wire: Wire, queue: str) -> list[Any]:
    said: list[Any] = []
    for name, values in {
        "consumer.assignor.offload.enable": ("true", " FALSE ", "yes", ""),
        "share.assignor.offload.enable": ("false", "no"),
        "streams.assignor.name": ("sticky", " sticky ", "Sticky", "none", ""),
        "streams.rack.aware.assignment.tags": ("a", " a , b ", "", "a,a", "a,,b", ",", "a b"),
        "errors.deadletterqueue.topic.name": ("x", " dlq.x ", "__dlq", ""),
        "errors.deadletterqueue.copy.record.enable": ("true", "x"),
    }.items():
        for value in values:
            said.append([name, value, *alter(wire, queue, (name, SET, value))])
    return said


@alike
def test_a_member_without_tags(wire: Wire, queue: str) -> list[Any]:
    """Its group's settings name the keys of tags that members are to have."""
    with unheard():
        coordinators(wire)
        streams.ready(wire, queue, 1, rack_aware_assignment_tags="zone,az")
    said = []
    for number, keys in enumerate(((), ("zone",), ("az", "other"), ("az", "zone"))):
        one = Thread(wire, queue, f"member {number}", part("0", queue))
        tags = [{"key": key, "value": "a"} for key in keys]
        for version in (1, 1, 0):
            values = one.values(client_tags=tags) if not one.epoch else one.values(
                active_tasks=None, standby_tasks=None, warmup_tasks=None
            )  # fmt: skip
            answer = one.wire.call(ApiKey.STREAMS_GROUP_HEARTBEAT, version, values)
            one.epoch = answer.member_epoch
            said.append([keys, version, int(answer.error_code), answer.status])
        one.wire.socket.close()
    return said


@alike
def test_a_streams_group(wire: Wire, queue: str) -> list[Any]:
    """A plugin would keep topologies' descriptions (KIP-1331); without one none is asked for."""
    key = ApiKey.STREAMS_GROUP_HEARTBEAT
    with unheard():
        coordinators(wire)
        streams.ready(wire, queue, 2)
    one = Thread(wire, queue, "one", part("0", queue))
    said: list[Any] = []
    first = one.wire.call(key, 1, one.values())
    one.epoch = first.member_epoch
    place = {"subtopology_id": "0", "partition": 1, "offset": 5}
    second = one.wire.call(key, 1, one.values(
        active_tasks=None, standby_tasks=None, warmup_tasks=None, task_offsets=(place,),
        task_end_offsets=(place,),
    ))  # fmt: skip
    for answer in (first, second):
        said.append(replace(answer, member_epoch=0, partitions_by_user_endpoint=None))
    for described in (False, True):
        values = {"group_ids": (queue, queue + "-none"), "include_authorized_operations": False,
                  "include_topology_description": described}  # fmt: skip
        for group in wire.call(ApiKey.STREAMS_GROUP_DESCRIBE, 1, values).groups:
            said.append([int(group.error_code), group.topology_description,
                         group.topology_description_status, group.assignor_name])  # fmt: skip
    for member in ("one", "stranger"):
        for group in (queue, queue + "-none"):
            values = {"group_id": group, "member_id": member, "topology_epoch": 0,
                      "topology_description": groups.DESCRIPTION}  # fmt: skip
            answer = wire.call(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, values)
            said.append(int(answer.error_code))
    one.wire.socket.close()
    return said
