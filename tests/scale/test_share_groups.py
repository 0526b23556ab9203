"""Share groups over many queues: what they cost while nobody reads, and while somebody does."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually, served
from tests.scale.test_many_queues import MIB, write_to_each
from tests.wire import Wire, batch

GROUP, MEMBER = "workers", "0" * 22


def beat(wire: Wire, epoch: int, names: list[str] | None) -> Any:
    values = {
        "group_id": GROUP, "member_id": MEMBER, "member_epoch": epoch, "rack_id": None,
        "subscribed_topic_names": names,
    }  # fmt: skip
    answer = wire.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, values)
    assert answer.error_code == 0
    return answer


def fetch(wire: Wire, epoch: int, topics: list[UUID], wait_ms: int = 0) -> Any:
    values = {
        "group_id": GROUP, "member_id": MEMBER, "share_session_epoch": epoch, "max_wait": wait_ms,
        "min_bytes": 1, "max_bytes": MIB, "max_records": 500, "batch_size": 500,
        "share_acquire_mode": 0, "is_renew_ack": False, "forgotten_topics_data": (),
        "topics": [
            {
                "topic_id": topic,
                "partitions": [{"partition_index": 0, "acknowledgement_batches": ()}],
            }
            for topic in topics
        ],
    }  # fmt: skip
    answer = wire.call(ApiKey.SHARE_FETCH, 2, values)
    assert answer.error_code == 0
    return answer


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_idle_queues_cost_disk_and_who_follows_them_is_told_of_one(
    data_dir: Path, count: int
) -> None:
    names = [f"user-{number}" for number in range(count)]
    with served(data_dir) as server:
        with Wire(server.host, server.port, seconds=60) as wire:
            write_to_each(server, count, batch(b"x"))
            epoch = beat(wire, 0, names).member_epoch
            assigned: list[UUID] = []

            def told() -> bool:
                nonlocal epoch
                answer = beat(wire, epoch, None)
                epoch = answer.member_epoch
                if answer.assignment is not None:
                    assigned[:] = [one.topic_id for one in answer.assignment.topic_partitions]
                return len(assigned) == count

            eventually(told, 60)
            before = server.rss()
            fetch(wire, 0, assigned)
            for number in range(1, 4):
                fetch(wire, number, [])
            followed = server.rss() - before
            print(f"{count} followed: {followed / count:.0f} bytes each")  # noqa: T201
            assert followed / count < 4096
            write_to_each(server, 1000, batch(b"one", b"two"))
            found: set[UUID] = set()

            def read() -> bool:
                nonlocal number
                number += 1
                for topic in fetch(wire, number, [], 1000).responses:
                    found.add(topic.topic_id)
                return len(found) == 1000

            eventually(read, 60)
        server.kill()
    with served(data_dir) as again:
        idle = again.rss()
        print(f"after a start {idle / MIB:.0f} MB")  # noqa: T201
        assert idle < 130 * MIB
