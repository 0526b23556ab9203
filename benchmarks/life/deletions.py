"""The time that deletions take: of many queues in one DeleteTopics, of many groups in one
DeleteGroups.

    python -m benchmarks.life.deletions [--queues N] [--groups N] [--rounds N] [--on-kafka]

Embedded with fsync, or two workers on a Kafka; each queue holds a record, each group an offset. The
first of two workers is asked to delete all queues, and each one the groups that it has. Each line
has seconds, the server's CPU, and the longest turn of its loop meanwhile
(`benchmarks.life.turns`).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.life import turns
from benchmarks.servers import AS_SHIPPED, kafka
from kproxy.loop.pace import slices
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import ZERO_UUID
from tests.bodies import creation
from tests.harness import Served, served
from tests.wire import Wire, batch
from tests.workers import Workers

_MADE_AT_ONCE = 1000


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Bench:
    """The servers that are asked, and where their turns are told."""

    def __init__(self, servers: list[Served], directories: list[Path]) -> None:
        self._servers = servers
        self._turns = directories
        self._processes = [psutil.Process(one.process.pid) for one in servers]
        self.wires = [Wire(one.host, one.port, seconds=120) for one in servers]

    def _cpu(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self._processes)

    def timed(self, what: str, work: Callable[[], Any]) -> None:
        cpu, since = self._cpu(), time.time()
        work()
        until = time.time()
        turn = max(turns.longest(one, since, until) for one in self._turns)
        _say(f"  {what}: {until - since:.2f} s, CPU {self._cpu() - cpu:.2f} s,"
             f" longest turn {turn * 1000:.0f} ms")  # fmt: skip

    def make_queues(self, names: list[str]) -> None:
        for some in slices(names, _MADE_AT_ONCE):
            answer = self.wires[0].call(ApiKey.CREATE_TOPICS, 7, creation(*some))
            assert not any(one.error_code for one in answer.topics)
            left = some
            for wire in self.wires:  # each has a part of them
                left = _written(wire, left)
            assert not left, left[:3]

    def delete_queues(self, names: list[str]) -> None:
        topics = [{"name": name, "topic_id": ZERO_UUID} for name in names]
        asked = {"topics": topics, "timeout": 60_000}
        answer = self.wires[0].call(ApiKey.DELETE_TOPICS, 6, asked)
        codes = {one.error_code for one in answer.responses}
        assert codes == {0}, codes

    def make_groups(self, names: list[str], queue: str) -> list[list[str]]:
        """Return the groups that each server coordinates."""
        found = []
        for wire in self.wires:
            mine = [name for name in names if not _committed(wire, name, queue)]
            found.append(mine)
        assert sum(map(len, found)) == len(names)
        return found

    def delete_groups(self, named: list[list[str]]) -> None:
        for wire, names in zip(self.wires, named, strict=True):
            wire.send(ApiKey.DELETE_GROUPS, 2, {"groups_names": names})
        for wire in self.wires:
            answer = wire.receive(ApiKey.DELETE_GROUPS, 2)[1]
            codes = {one.error_code for one in answer.results}
            assert codes == {0}, codes


def _written(wire: Wire, names: list[str]) -> list[str]:
    """Write a record to each queue that is served there; return the others."""
    data = batch(b"v")
    topics = [{"name": name, "partition_data": [{"index": 0, "records": data}]} for name in names]
    values = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": topics}
    wire.socket.sendall(wire.frame(ApiKey.PRODUCE, 9, values))
    answer = wire.receive(ApiKey.PRODUCE, 9)[1]
    return [one.name for one in answer.responses if one.partition_responses[0].error_code]


def _committed(wire: Wire, group: str, queue: str) -> int:
    part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
            "committed_metadata": ""}  # fmt: skip
    values = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None, "topics": [{"name": queue, "partitions": [part]}],
    }  # fmt: skip
    answer = wire.call(ApiKey.OFFSET_COMMIT, 8, values)
    return int(answer.topics[0].partitions[0].error_code)


@contextmanager
def _benches(directory: Path, on_kafka: bool) -> Iterator[Bench]:
    told = [directory / "told-0", directory / "told-1"]
    with ExitStack() as stack:
        if not on_kafka:
            env = turns.environment(told[0])
            data = directory / "data"
            server = stack.enter_context(served(data, *AS_SHIPPED, by_exec=True, env=env))
            yield Bench([server], told[:1])
            return
        broker = stack.enter_context(kafka(directory / "kafka"))
        env = turns.environment(told[0])
        workers = Workers(broker, directory / "workers", *AS_SHIPPED, prefix="deletions", env=env)
        with workers.running(120):
            yield Bench(workers.workers, told[:1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--on-kafka", action="store_true")
    asked = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kproxy-bench-")))
        bench = stack.enter_context(_benches(directory, asked.on_kafka))
        bench.make_queues(["kept"])
        for number in range(asked.rounds):
            queues = [f"queue-{number}-{one}" for one in range(asked.queues)]
            groups = [f"group-{number}-{one}" for one in range(asked.groups)]
            bench.make_queues(queues)
            made = bench.make_groups(groups, "kept")
            bench.timed(f"{len(queues)} queues", partial(bench.delete_queues, queues))
            bench.timed(f"{len(groups)} groups", partial(bench.delete_groups, made))


if __name__ == "__main__":
    main()
