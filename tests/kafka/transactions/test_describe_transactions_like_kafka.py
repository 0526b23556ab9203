"""Finding, describing and listing transactions, and their timeouts: answers as by a Kafka 4.3.1."""

import time
from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served, eventually
from tests.kafka.canonical import unheard
from tests.kafka.cluster import Cluster, name
from tests.kafka.recorded import Recorded, Target
from tests.kafka.transactions.producer import Producer, alike_in_transactions, ready
from tests.wire import Wire, batch


@alike_in_transactions
def test_find_coordinator(cluster: Cluster, queue: str) -> None:
    for version in (1, 2, 3):
        for key in (queue, "", " "):
            values = {"key_type": 1, "key": key}
            answer = cluster.wire.call(ApiKey.FIND_COORDINATOR, version, values)
            cluster.say(f"find v{version} {key!r}", (name(answer.error_code), answer.node_id >= 0))
    for version in (4, 5, 6):
        for keys in ((queue,), (queue, queue + "-2", queue), (), ("",), (queue, "")):
            values = {"key_type": 1, "coordinator_keys": keys}
            answer = cluster.wire.call(ApiKey.FIND_COORDINATOR, version, values)
            found = [(c.key, name(c.error_code), c.node_id >= 0) for c in answer.coordinators]
            cluster.say(f"find v{version} {keys}", found)


@alike_in_transactions
def test_features_and_versions(cluster: Cluster, queue: str) -> None:
    values = {"client_software_name": "x", "client_software_version": "1"}
    answer = cluster.wire.call(ApiKey.API_VERSIONS, 4, values)
    known = [f for f in answer.supported_features if f.name == "transaction.version"]
    final = [f for f in answer.finalized_features if f.name == "transaction.version"]
    cluster.say("supported", [(f.min_version, f.max_version) for f in known])
    cluster.say("finalized", [(f.min_version_level, f.max_version_level) for f in final])
    cluster.say("finalized at an epoch", answer.finalized_features_epoch >= 0)
    versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
    # Requests between brokers are not for clients of kproxy.
    keys = (
        ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_PRODUCERS, ApiKey.PRODUCE,
    )  # fmt: skip
    # Kafka 4.4 has TxnOffsetCommit 6, and so has kproxy: `test_newest_versions_like_kafka`.
    newest = {ApiKey.TXN_OFFSET_COMMIT: 5}
    said = {k: (least, min(most, newest.get(k, most))) for k, (least, most) in versions.items()}
    cluster.say("versions", [(int(k), said.get(k)) for k in keys])


@alike_in_transactions
def test_describe(cluster: Cluster, queue: str) -> None:
    cluster.make(queue, 3)
    cluster.make(queue + "-b", 2)
    cluster.describe(queue)  # nobody has it
    cluster.describe("")
    for tv in (1, 2):
        one = Producer(cluster, f"{queue}-{tv}", tv)
        one.init(timeout_ms=12_345)
        cluster.describe(one.id)
        one.add((queue, 2), (queue + "-b", 1))
        cluster.describe(one.id)
        one.add((queue, 0)).write(queue, partition=2).write(queue, partition=0)
        one.write(queue + "-b", partition=1)
        cluster.describe(one.id)
        one.commit()
        cluster.describe(one.id)
        one.add((queue, 1)).write(queue, partition=1)
        cluster.describe(one.id)
        one.abort()
        cluster.describe(one.id)
        one.init(timeout_ms=54_321)
        cluster.describe(one.id)


@pytest.mark.parametrize("version", range(3))
@alike_in_transactions
def test_list(cluster: Cluster, queue: str, version: int) -> None:
    cluster.make(queue)
    makers = [Producer(cluster, f"{queue}-{n}").init() for n in range(4)]
    for one in makers[1:]:
        one.write(queue)
    makers[2].commit()
    makers[3].abort()

    def look(**filters: Any) -> None:
        cluster.list_transactions(queue, version, **filters)

    look()
    for states in (
        ("Ongoing",), ("Empty", "CompleteAbort"), ("ongoing",), ("Nonsense",),
        ("Nonsense", "Ongoing"), ("",), ("PrepareCommit",), ("Dead",), ("PrepareEpochFence",),
    ):  # fmt: skip
        look(state_filters=states)
    for some in ((0,), (1, 2), (0, 1, 2, 3)):
        look(producer_id_filters=tuple(makers[n].pid for n in some))
    look(producer_id_filters=(makers[1].pid + 1_000_000,))
    look(producer_id_filters=(makers[1].pid,), state_filters=("Empty",))
    if version >= 1:
        for duration in (-1, -7, 0, 1_000_000):  # a transaction that never began passes each
            look(duration_filter=duration)
        time.sleep(0.01)
        look(duration_filter=1)
    if version >= 2:
        other_case = "(?i)" + queue[:4].upper() + queue[4:]
        for pattern in (
            f"{queue}-[12]", f"{queue}-1", queue, f"{queue}.*", "", None, f"^{queue}-1$",
            f"{other_case}-1", "(", "*", f"{queue}-(?=1).",
        ):  # fmt: skip
            look(transactional_id_pattern=pattern)


@alike_in_transactions
def test_producers_of_partitions(cluster: Cluster, queue: str) -> None:
    cluster.make(queue)
    cluster.producers(queue)
    one = Producer(cluster, queue + "-1", tv=1).init()
    other = Producer(cluster, queue + "-2").init()
    plain = cluster.wire.producer_id()
    data = batch(b"v", producer_id=plain, epoch=0, sequence=0)
    cluster.leader(queue).produce(queue, data)
    one.add((queue, 0))
    cluster.producers(queue)
    one.write(queue, b"a", b"b").write(queue)
    other.write(queue)
    cluster.producers(queue)
    one.commit()
    cluster.producers(queue)
    other.abort()
    cluster.producers(queue)
    one.add((queue, 0)).write(queue)
    cluster.producers(queue)
    one.init()
    cluster.producers(queue)


@pytest.mark.parametrize("tv", [1, 2])
@alike_in_transactions
def test_timeouts(cluster: Cluster, queue: str, tv: int) -> None:
    """A transaction that takes too long is aborted, and its producer fenced."""
    late = [Producer(cluster, f"{queue}-{n}", tv) for n in range(5)]
    for one in late:
        cluster.make(one.id)
        one.init(timeout_ms=2000)  # all of it is asked for before
        one.add((one.id, 0)).write(one.id)
        one.add_offsets(queue).commit_offset(queue, one.id, 5)
    for one in late:
        eventually(
            lambda one=one: cluster.state(one.id).state not in ("Ongoing", "PrepareAbort"), 40
        )
        cluster.describe(one.id)
        cluster.committed(queue, one.id)
    for one in late:
        one.but().write(one.id)
        one.but().add((one.id, 0)).add_offsets(queue).commit_offset(queue, one.id, 6)
    late[0].but().commit()
    late[1].but().abort()  # looks as if said again: in TV2 it is told the new epoch
    late[2].but().init(like=late[2])  # so does this
    late[3].but().init()
    late[3].but().init(like=late[3])
    late[4].but(by=1).write(late[4].id, sequence=0).abort()
    for one in late:
        cluster.describe(one.id)
        part = cluster.fetch(one.id)
        assert part.high_watermark == part.last_stable_offset


@alike_in_transactions
def test_nothing_times_out_between_transactions(cluster: Cluster, queue: str) -> None:
    cluster.make(queue)
    one = Producer(cluster, queue).init(timeout_ms=1)
    two = Producer(cluster, queue + "-2").init(timeout_ms=2500)
    time.sleep(1.3)
    cluster.describe(queue)
    two.write(queue).commit()
    time.sleep(1.3)
    two.write(queue).commit()
    one.init(timeout_ms=60_000)
    one.write(queue).commit()
    cluster.describe(two.id)
    cluster.fetch(queue)


@pytest.mark.parametrize("version", [1, 2])
def test_markers_of_clients_are_refused(recorded: Recorded, server: Served, version: int) -> None:
    """Here kproxy differs on purpose: a real Kafka without an authorizer believes any client."""

    def script(target: Target) -> list[Any]:
        queue = recorded.name
        with Wire(target.host, target.port) as wire, Cluster(wire) as cluster:
            with unheard():
                ready(wire)
            cluster.make(queue)
            one = Producer(cluster, queue).init()
            one.write(queue)
            marker = {
                "producer_id": one.pid, "producer_epoch": one.epoch, "coordinator_epoch": 0,
                "transaction_result": True, "transaction_version": 0,
                "topics": [{"name": queue, "partition_indexes": (0,)}],
            }  # fmt: skip
            with Wire(*cluster.leader(queue).socket.getpeername()[:2]) as own:
                try:
                    answer = own.call(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [marker]})
                    codes = [p.error_code for m in answer.markers
                             for t in m.topics for p in t.partitions]  # fmt: skip
                except ConnectionError:
                    codes = []
            part = cluster.fetch(queue)
            one.commit()
            return [*codes, part.last_stable_offset, cluster.fetch(queue).last_stable_offset]

    theirs, ours = recorded.both(script, server)
    assert theirs == ["NONE", 2, 3]
    assert ours in ([0, 2], ["CLUSTER_AUTHORIZATION_FAILED", 0, 2])
