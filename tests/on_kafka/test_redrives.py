"""Dead letters that go back to work, on two workers, with stock clients alone.

kcat writes, Java's share consumer rejects, and `kafka-configs` and librdkafka's admin client begin
and end redrives.
"""

from collections.abc import Iterator

import pytest

from tests.clients.calls import alter, bounds, create
from tests.clients.groups.test_group_tools import CONFIGS
from tests.clients.libraries.test_kcat import kcat
from tests.clients.shares.members import FLAGS, configure
from tests.clients.shares.test_dead_letters import ENABLED
from tests.harness import eventually, java
from tests.on_kafka.test_life import SHARE_CONSUMER, kill_owner, living
from tests.real_kafka import Kafka
from tests.workers import Workers

pytestmark = pytest.mark.long

HEADERS = "%s %h\n"


@pytest.fixture(scope="module")
def two(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(kafka, tmp_path_factory.mktemp("redrives"), *FLAGS).running() as running:
        yield running


def reject(workers: Workers, queue: str, count: int) -> list[str]:
    """Have Java's share consumer reject so many records, and return them."""
    said = java(
        SHARE_CONSUMER, "--bootstrap-server", living(workers), "--topic", queue, "--group", queue,
        "--reject", "--max-messages", str(count), "--timeout-ms", "60000",
    )  # fmt: skip
    return said.split()


def redrive(workers: Workers, dead: str, *arguments: str) -> None:
    at = ("--bootstrap-server", living(workers))
    java(CONFIGS, *at, "--alter", "--topic", dead, *arguments)


def test_letters_go_back_to_work_and_die_again(two: Workers, queue: str) -> None:
    dead, other = f"dlq.{queue}", f"{queue}-other"
    create(two.address, queue, dead, other)
    alter(two.address, dead, **ENABLED)
    configure(
        two.address, queue, errors_deadletterqueue_topic_name=dead,
        errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    kcat(two, "-P", "-t", queue, "-H", "mine=x", stdin="a\nb\nc\n")
    assert reject(two, queue, 3) == ["a", "b", "c"]
    eventually(lambda: bounds(two.address, dead) == (0, 3), 60)

    redrive(two, dead, "--add-config", "kproxy.redrive.to=*,kproxy.redrive.job=first")
    eventually(lambda: bounds(two.address, queue) == (0, 6), 60)
    said = kcat(two, "-C", "-t", queue, "-o", "3", "-e", "-q", "-f", HEADERS)
    assert said == "".join(f"{word} mine=x,kproxy.redriven=1\n" for word in "abc")
    kill_owner(two, dead)
    assert reject(two, queue, 3) == ["a", "b", "c"]
    eventually(lambda: bounds(two.address, dead) == (0, 6), 60)
    assert bounds(two.address, queue) == (0, 6), "the first redrive takes no later letters"

    alter(two.address, dead, kproxy_redrive_to=other, kproxy_redrive_job="second")
    eventually(lambda: bounds(two.address, other) == (0, 6), 60)
    said = kcat(two, "-C", "-t", other, "-e", "-q", "-f", HEADERS)
    assert said.splitlines() == [
        f"{word} mine=x,kproxy.redriven={times}" for times in (1, 2) for word in "abc"
    ]
    redrive(two, dead, "--delete-config", "kproxy.redrive.to,kproxy.redrive.job")
    alter(two.address, dead, kproxy_redrive_to="*", kproxy_redrive_times_max=1)
    eventually(lambda: bounds(two.address, queue) == (0, 9), 60)  # those of the second death stay
