"""One request, however long, neither holds the loop nor takes all memory."""

import gc
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kproxy.common.errors import Code
from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.handlers.groups import offsets
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.protocol.varint import Malformed
from kproxy.security.peer import Peer
from kproxy.server.dispatch import accept
from kproxy.server.dispatch import answer as respond
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import CommitOffsets
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.bodies import creation, growth, metadata
from tests.fakes import MemoryShard, chunks_of, memory_worker
from tests.held import HELD_S, held_by, slowness
from tests.present import present
from tests.wire import batch, batches, fetch_values

NO_ID = UUID(int=0)


def shard_of(worker: Worker) -> MemoryShard:
    shard: Any = worker.any_shard()
    assert isinstance(shard, MemoryShard)
    return shard


async def call(
    worker: Worker, key: int, version: int, values: dict[str, Any], search: bytes = b""
) -> Any:
    """Return the answer to a request for which the loop was never held long."""
    frame = encode_request(key, version, 1, values, search)[4:]
    accepted = accept(worker, frame, Peer(), NextRequestSignal())
    assert accepted.call is None

    async def answered() -> bytes | bytearray:
        answer = await respond(worker, accepted)
        return (
            b"".join(await chunks_of(answer))
            if isinstance(answer, StreamedResponse)
            else answer or b""
        )

    answer, held = await held_by(answered())
    assert held < HELD_S * slowness()
    assert worker.answer_memory.used == 0
    return decode_response(key, version, bytes(answer[4:]))[1] if answer else None


def make(worker: Worker, name: str, partitions: int = 1) -> None:
    worker.catalogue.create(name, partitions)


def commit_values(queue: str, indices: Any, group: str = "g") -> dict[str, Any]:
    parts = [
        {"partition_index": index, "committed_offset": number, "committed_metadata": ""}
        for number, index in enumerate(indices)
    ]
    return {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
        "topics": [{"name": queue, "partitions": parts}],
    }  # fmt: skip


async def test_metadata_takes_a_name_once() -> None:
    worker = memory_worker()
    make(worker, "q", 2000)
    answer = await call(worker, 3, 12, metadata(["q"] * 1000 + ["r", "q"]))
    assert [topic.name for topic in answer.topics] == ["q", "r"]
    assert len(answer.topics[0].partitions) == 2000


async def test_many_new_names() -> None:
    worker = memory_worker()
    names = [f"new-{i}" for i in range(5000)]
    answer = await call(worker, 3, 12, metadata(names))
    assert [topic.name for topic in answer.topics] == names
    assert {topic.error_code for topic in answer.topics} == {0}


async def test_offsets_of_a_group_asked_for_many_times() -> None:
    worker = memory_worker()
    make(worker, "q", 500)
    await call(worker, 8, 8, commit_values("q", range(500)))
    asked = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}
    answer = await call(worker, 9, 9, {"groups": [asked] * 100, "require_stable": False})
    assert [len(group.topics[0].partitions) for group in answer.groups] == [500] * 100


async def test_an_answer_that_takes_all_memory_ends_its_connection() -> None:
    worker = memory_worker(answer_bytes_buffered_max=4 << 20)
    make(worker, "q", 500)
    await call(worker, 8, 8, commit_values("q", range(500)))
    asked = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}
    with pytest.raises(Malformed, match="answer_bytes_buffered_max"):
        await call(worker, 9, 9, {"groups": [asked] * 1000, "require_stable": False})
    assert worker.answer_memory.used == 0


async def test_many_producers_described_many_times() -> None:
    worker = memory_worker()
    make(worker, "q")
    assert worker.catalogue.find("q") is not None
    for producer in range(300):
        data = batch(b"v", producer_id=producer, epoch=0, sequence=0)
        topics = [{"name": "q", "partition_data": [{"index": 0, "records": data}]}]
        values = {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": topics}
        accept(
            worker, encode_request(ApiKey.PRODUCE, 9, 1, values)[4:], Peer(), NextRequestSignal()
        )
    topics = [{"name": "q", "partition_indexes": [0] * 200}]
    answer = await call(worker, 61, 0, {"topics": topics})
    counts = [len(part.active_producers) for part in answer.topics[0].partitions]
    assert counts == [300] * 200


async def test_settings_described_many_times() -> None:
    worker = memory_worker()
    make(worker, "q")
    resource = {"resource_type": 2, "resource_name": "q", "configuration_keys": None}
    answer = await call(worker, 32, 4, {
        "resources": [resource] * 3000, "include_synonyms": True,
        "include_documentation": True,
    })  # fmt: skip
    assert len(answer.results) == 3000


async def test_a_produce_of_many_batches_keeps_their_order() -> None:
    worker = memory_worker()
    make(worker, "q", 10_000)
    parts = [{"index": i, "records": batch(b"%d" % i)} for i in range(10_000)]
    values = {"transactional_id": None, "acks": -1, "timeout": 1}
    topics = [{"name": "q", "partition_data": parts}]
    for offset in range(2):
        answer = await call(worker, 0, 9, values | {"topic_data": topics})
        produced = answer.responses[0].partition_responses
        assert [part.index for part in produced] == list(range(10_000))
        assert {part.base_offset for part in produced} == {offset}
    appended = [e.partition for e in shard_of(worker).log if e.kind == Kind.APPEND]
    assert appended == [*range(10_000), *range(10_000)]
    none = await call(worker, 0, 9, values | {"topic_data": topics, "acks": 0})
    assert none is None
    wrong = await call(worker, 0, 9, values | {"topic_data": topics, "acks": 5})
    assert {part.error_code for part in wrong.responses[0].partition_responses} == {21}
    gone = [{"name": "gone/", "partition_data": parts}]
    with pytest.raises(Malformed):
        await call(worker, 0, 9, values | {"topic_data": gone, "acks": 0})


async def test_a_produce_that_names_a_partition_very_often_takes_the_last_records() -> None:
    worker = memory_worker()
    make(worker, "q", 2)
    for count in (1002, 100_000):
        parts = [{"index": i % 2, "records": batch(b"%d" % i)} for i in range(count)]
        half = [{"name": "q", "partition_data": some} for some in (parts[:7], parts[7:])]
        values = {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": half}
        answer = await call(worker, 0, 9, values)
        (topic,) = answer.responses
        assert [part.index for part in topic.partition_responses] == [0, 1]
        taken = [e.body for e in shard_of(worker).log if e.kind == Kind.APPEND][-2:]
        last = sorted(range(count - 2, count), key=lambda number: number % 2)
        assert taken == [batch(b"%d" % number) for number in last]
    assert len([e for e in shard_of(worker).log if e.kind == Kind.APPEND]) == 4


async def test_a_commit_of_many_offsets_is_many_commands_and_the_last_one_holds() -> None:
    worker = memory_worker()
    make(worker, "q", 3)
    values = commit_values("q", [i % 3 for i in range(30_000)] + [7])
    answer = await call(worker, 8, 8, values)
    codes = [part.error_code for part in answer.topics[0].partitions]
    assert codes == [0] * 30_000 + [3]
    commits = [e for e in shard_of(worker).log if e.kind == Kind.COMMIT]
    sizes = [len(CommitOffsets.decode(envelope).offsets) for envelope in commits]
    assert (sum(sizes), max(sizes)) == (30_000, 500)
    asked = {"name": "q", "partition_indexes": [0, 1, 2]}
    read = await call(worker, 9, 7, {
        "group_id": "g", "topics": [asked], "require_stable": False,
    })  # fmt: skip
    offsets = [part.committed_offset for part in read.topics[0].partitions]
    assert offsets == [29_997, 29_998, 29_999]


async def test_a_commit_that_no_log_takes_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = memory_worker()
    make(worker, "q")
    too_large = offsets.Code.MESSAGE_TOO_LARGE
    outcome = type("Refused", (), {"code": too_large, "codes": ()})()

    async def refused(*_: Any) -> Any:
        return outcome

    monkeypatch.setattr(offsets, "append", refused)
    answer = await call(worker, 8, 8, commit_values("q", [0]))
    assert answer.topics[0].partitions[0].error_code == 28


async def test_offsets_of_many_partitions_listed() -> None:
    worker = memory_worker()
    make(worker, "q", 10)
    parts = [{"partition_index": i, "timestamp": -1} for i in [3, *range(60_000)]]
    topics = [{"name": "q", "partitions": parts}]
    values = {"replica_id": -1, "isolation_level": 0, "timeout": 1, "topics": topics}
    answer = await call(worker, 2, 10, values)
    codes = {p.partition_index: p.error_code for p in answer.topics[0].partitions}
    assert len(answer.topics[0].partitions) == 60_000
    assert codes[3] == 42  # named twice
    assert [codes[i] for i in (0, 9, 10, 59_999)] == [0, 0, 3, 3]


async def test_records_of_many_partitions_deleted() -> None:
    worker = memory_worker()
    make(worker, "q", 10)
    parts = [{"partition_index": i % 40_000, "offset": -1} for i in range(50_000)]
    topics = [{"name": "q", "partitions": parts}]
    answer = await call(worker, 21, 2, {"topics": topics, "timeout": 1})
    assert len(answer.topics[0].partitions) == 40_000
    assert sum(part.error_code == 0 for part in answer.topics[0].partitions) == 10


async def test_leftovers_of_tests_do_not_count() -> None:
    """A look for cycles among all of it took 0.18 s, in the middle of a request, once in CI."""

    async def work() -> tuple[list[list[int]], int]:
        before = gc.get_stats()[2]["collections"]
        return [[number] for number in range(100_000)], gc.get_stats()[2]["collections"] - before

    gc.disable()
    left = [[number] for number in range(1_000_000)]
    gc.enable()
    (made, looks), _ = await held_by(work())
    assert (len(left), len(made), looks) == (1_000_000, 100_000, 0)


async def test_many_small_batches_are_fetched_some_at_a_time() -> None:
    worker = memory_worker()
    make(worker, "q", 3)
    data = batch(b"v")
    for index in (0, 1):
        queue = present(worker.catalogue.find("q"))
        many = [Envelope(Kind.APPEND, queue.queue_id, index, body=data) for _ in range(15_000)]
        shard_of(worker).append(many)
    read = dict.fromkeys(range(3), 0)
    answers = 0
    while sum(read.values()) < 30_000:
        answers += 1
        wanted: Any = {("q", index): offset for index, offset in read.items()}
        limits = {"max_bytes": 50 << 20, "partition_max_bytes": 50 << 20}
        answer = await call(worker, 1, 12, fetch_values(wanted, **limits))
        for part in answer.responses[0].partitions:
            found = batches(part.records)
            start = read[part.partition_index]
            assert [base for base, _ in found] == list(range(start, start + len(found)))
            assert len(found) <= 1000
            read[part.partition_index] += len(found)
    assert answers == 15


async def test_many_partitions_are_fetched() -> None:
    worker = memory_worker()
    make(worker, "q", 2)
    wanted: Any = {("q", index): 0 for index in range(30_000)}
    answer = await call(worker, 1, 12, fetch_values(wanted, epoch=0))
    parts = answer.responses[0].partitions
    assert [part.error_code for part in parts] == [0, 0] + [3] * 29_998


async def test_new_partitions_are_bounded_as_in_kafka() -> None:
    worker = memory_worker()
    asked = creation("a", partitions=9999)
    asked["topics"] += creation("b", "c")["topics"]
    answer = await call(worker, 19, 7, asked)
    assert [t.error_code for t in answer.topics] == [44] * 3
    assert worker.catalogue.find("c") is None
    make(worker, "a"), make(worker, "b")
    answer = await call(worker, 37, 3, growth("a", "b", count=6000, dry=True))
    assert [result.error_code for result in answer.results] == [0, 44]


async def test_a_queue_named_twice_is_not_deleted() -> None:
    worker = memory_worker()
    make(worker, "q"), make(worker, "r")
    topics = [{"name": name, "topic_id": NO_ID} for name in "qrq"]
    answer = await call(worker, 20, 6, {"topics": topics, "timeout": 1})
    assert {t.name: t.error_code for t in answer.responses} == {"q": 42, "r": 0}
    assert worker.catalogue.find("q") is not None


MANY = 240_000


async def test_a_page_of_very_many_queues_is_found_in_slices() -> None:
    worker = memory_worker()
    make(worker, "none-5")
    topics = [{"name": f"none-{i * 7919 % MANY}"} for i in range(MANY)]
    answer = await call(worker, 75, 0, {
        "topics": topics, "response_partition_limit": 2000,
        "cursor": {"topic_name": "none-5", "partition_index": 0},
    })  # fmt: skip
    names = [topic.name for topic in answer.topics]
    assert names == sorted(t["name"] for t in topics if t["name"] >= "none-5")
    assert [topic.error_code for topic in answer.topics[:2]] == [0, 3]


async def test_very_many_settings_of_one_queue_are_refused_in_slices() -> None:
    worker = memory_worker()
    make(worker, "q")
    settings = [{"name": f"s{i % (MANY - 9)}", "value": "1", "config_operation": 0}
                for i in range(MANY)]  # fmt: skip
    resource = {"resource_type": 2, "resource_name": "q", "configs": settings}
    for configs, code in ((settings[:9], 40), (settings, 42)):
        values = {"resources": [resource | {"configs": configs}], "validate_only": True}
        answer = await call(worker, 44, 1, values)
        assert [r.error_code for r in answer.responses] == [code]


async def test_very_many_queues_are_not_deleted_in_slices() -> None:
    worker = memory_worker()
    names = [f"none-{i}" for i in range(MANY // 2)]
    answer = await call(worker, 20, 5, {"topic_names": [*names, *names[:9]], "timeout": 1})
    codes = [result.error_code for result in answer.responses]
    assert codes == [42] * 9 + [3] * (len(names) - 9)


async def test_very_many_partitions_are_followed_and_let_go_of_in_slices() -> None:
    worker = memory_worker(fetch_session_partitions_max=100000)
    for queue in range(8):
        make(worker, f"q{queue}", 10_000)
    watchers = shard_of(worker).watchers
    wanted: Any = {(f"q{i % 8}", i // 8): 0 for i in range(80_000)}
    opened = await call(worker, 1, 12, fetch_values(wanted, epoch=0))
    assert len(watchers) == 80_000
    closing = fetch_values({}, session_id=opened.session_id, epoch=-1)
    await call(worker, 1, 12, closing)
    assert len(watchers) == len(worker.sessions) == 0
    await call(worker, 1, 12, fetch_values(wanted, wait_ms=1))
    assert len(watchers) == 0


async def test_very_many_features_are_refused_in_slices() -> None:
    worker = memory_worker()
    for names in ([f"f{n}" for n in range(100_000)], ["f"] * 100_000):
        updates = [{"feature": name, "max_version_level": 1, "upgrade_type": 1} for name in names]
        values = {"feature_updates": updates, "validate_only": False}
        answer = await call(worker, 57, 1, values)
        assert answer.error_code in (Code.INVALID_REQUEST, Code.INVALID_UPDATE_VERSION)


NAMES = [f"t{number}" for number in range(150_000)]
GROUP = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
EMPTY_TOPICS: dict[tuple[ApiKey, int], Any] = {
    (ApiKey.PRODUCE, 9): lambda: {
        "transactional_id": None, "acks": -1, "timeout": 1,
        "topic_data": [{"name": name, "partition_data": []} for name in NAMES],
    },
    (ApiKey.LIST_OFFSETS, 6): lambda: {
        "replica_id": -1, "isolation_level": 0,
        "topics": [{"name": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.OFFSET_COMMIT, 8): lambda: GROUP | {
        "topics": [{"name": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.OFFSET_FETCH, 8): lambda: {
        "require_stable": False,
        "groups": [{
            "group_id": "g",
            "topics": [{"name": name, "partition_indexes": []} for name in NAMES],
        }],
    },
    (ApiKey.DELETE_RECORDS, 2): lambda: {
        "timeout": 1, "topics": [{"name": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4): lambda: {
        "replica_id": -1, "topics": [{"topic": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.DESCRIBE_PRODUCERS, 0): lambda: {
        "topics": [{"name": name, "partition_indexes": []} for name in NAMES],
    },
    (ApiKey.ALTER_REPLICA_LOG_DIRS, 2): lambda: {
        "dirs": [{
            "path": "/data", "topics": [{"name": name, "partitions": []} for name in NAMES],
        }],
    },
    (ApiKey.OFFSET_DELETE, 0): lambda: {
        "group_id": "none", "topics": [{"name": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.FETCH, 12): lambda: fetch_values({}) | {
        "topics": [{"topic": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.DESCRIBE_LOG_DIRS, 4): lambda: {
        "topics": [{"topic": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.ELECT_LEADERS, 2): lambda: {
        "election_type": 0, "timeout": 1,
        "topic_partitions": [{"topic": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.DESCRIBE_QUORUM, 2): lambda: {
        "topics": [{"topic_name": name, "partitions": []} for name in NAMES],
    },
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0): lambda: {
        "timeout": 1, "topics": [{"name": name, "partitions": []} for name in NAMES],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "version"), EMPTY_TOPICS, ids=lambda value: getattr(value, "name", str(value))
)
async def test_very_many_topics_without_a_partition(
    key: ApiKey, version: int, tmp_path: Path
) -> None:
    worker = memory_worker(data_dir=tmp_path)
    assert await call(worker, key, version, EMPTY_TOPICS[key, version]())
    assert shard_of(worker).log == []


async def test_a_small_batch_does_not_hold_the_large_frame_that_it_came_in() -> None:
    worker = memory_worker()
    make(worker, "q", 2)
    small, broken = batch(b"v"), bytes(1 << 20)
    parts = [{"index": 0, "records": small}, {"index": 1, "records": broken}]
    values = {"transactional_id": None, "acks": -1, "timeout": 1}
    topics = [{"name": "q", "partition_data": parts}]
    frame = encode_request(ApiKey.PRODUCE, 9, 1, values | {"topic_data": topics})[4:]
    assert accept(worker, frame, Peer(), NextRequestSignal()).call is not None
    (appended,) = (e for e in shard_of(worker).log if e.kind == Kind.APPEND)
    assert isinstance(appended.body, bytes)
    assert appended.body == small
