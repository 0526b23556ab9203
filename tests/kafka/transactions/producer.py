"""Transactional producers by hand: what each asks is said by its `Cluster`, to be compared."""

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, TypeVar

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served
from tests.kafka.alike import as_test, compare
from tests.kafka.cluster import ELSEWHERE, LATER, Cluster, name
from tests.kafka.recorded import Recorded
from tests.wire import Wire, batch, produce_values

NOT_NOW = {6, 19, 51}  # codes of a partition's leader while it asks a coordinator, or moves

AnyCluster = TypeVar("AnyCluster", bound=Cluster)


class Producer:
    """A client's side of a transactional id. `tv` 2 uses the requests of KIP-890."""

    def __init__(self, cluster: Cluster, transactional_id: str, tv: int = 2) -> None:
        self.cluster = cluster
        self.id = transactional_id
        self.tv = tv
        self.pid = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def but(self, *, by: int = 0, **changes: Any) -> "Producer":
        """Return one with an epoch that much higher, or with another id, pid, epoch or tv."""
        other = copy.copy(self)
        other.sequences = dict(self.sequences)
        other.epoch += by
        for key, value in changes.items():
            setattr(other, key, value)
        return other

    def __str__(self) -> str:
        return f"{self.id!r} {self.cluster.pid(self.pid)}/{self.epoch}"

    def _named(self) -> dict[str, Any]:
        return {
            "transactional_id": self.id, "producer_id": self.pid, "producer_epoch": self.epoch,
            "v3_and_below_transactional_id": self.id, "v3_and_below_producer_id": self.pid,
            "v3_and_below_producer_epoch": self.epoch,
        }  # fmt: skip

    def init(
        self, version: int = 4, *, timeout_ms: int = 60_000, like: "Producer | None" = None,
        again: bool = True,
    ) -> "Producer":  # fmt: skip
        """Send InitProducerId; `like` has the expected producer id and epoch."""
        expected = (-1, -1) if like is None else (like.pid, like.epoch)
        values = {
            "transactional_id": self.id, "transaction_timeout": timeout_ms,
            "producer_id": expected[0], "producer_epoch": expected[1],
        }  # fmt: skip
        answer = self.cluster.coordinated(
            self.id, ApiKey.INIT_PRODUCER_ID, version, values, again=LATER if again else ELSEWHERE
        )
        self.cluster.say(
            f"init v{version} {self.id!r} timeout {timeout_ms} "
            f"expected {self.cluster.pid(expected[0])}/{expected[1]}",
            f"{name(answer.error_code)} "
            f"{self.cluster.pid(answer.producer_id)}/{answer.producer_epoch}",
        )
        if answer.error_code == 0:
            self._is_now(answer)
        return self

    def _is_now(self, answer: Any) -> None:
        if (self.pid, self.epoch) != (answer.producer_id, answer.producer_epoch):
            self.sequences.clear()
        self.pid, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, *parts: tuple[str, int], version: int = 3, again: bool = True) -> "Producer":
        """Send AddPartitionsToTxn."""
        topics: dict[str, list[int]] = {}
        for topic, partition in parts:
            topics.setdefault(topic, []).append(partition)
        values = self._named() | {
            "v3_and_below_topics": [{"name": t, "partitions": p} for t, p in topics.items()]
        }
        answer = self.cluster.coordinated(
            self.id, ApiKey.ADD_PARTITIONS_TO_TXN, version, values,
            again=LATER if again else ELSEWHERE,
            codes=lambda a: {
                int(p.partition_error_code)
                for t in a.results_by_topic_v3_and_below
                for p in t.results_by_partition
            },
        )  # fmt: skip
        shown = sorted(
            f"{t.name}/{p.partition_index} {name(p.partition_error_code)}"
            for t in answer.results_by_topic_v3_and_below
            for p in t.results_by_partition
        )
        self.cluster.say(f"add v{version} {self} {parts}", shown)
        return self

    def add_offsets(self, group: str, version: int = 3, again: bool = True) -> "Producer":
        """Send AddOffsetsToTxn."""
        answer = self.cluster.coordinated(
            self.id, ApiKey.ADD_OFFSETS_TO_TXN, version, self._named() | {"group_id": group},
            again=LATER if again else ELSEWHERE,
        )  # fmt: skip
        self.cluster.say(f"add offsets v{version} {self} {group!r}", name(answer.error_code))
        return self

    def end(
        self, commit: bool, version: int | None = None, again: bool = True, settle: bool = True
    ) -> "Producer":
        """Send EndTxn, and wait until the markers are written."""
        version = version if version is not None else 5 if self.tv == 2 else 3
        answer = self.cluster.coordinated(
            self.id, ApiKey.END_TXN, version, self._named() | {"committed": commit},
            again=LATER if again else ELSEWHERE,
        )  # fmt: skip
        shown = name(answer.error_code)
        if version >= 5:
            shown += f" {self.cluster.pid(answer.producer_id)}/{answer.producer_epoch}"
        self.cluster.say(f"{'commit' if commit else 'abort'} v{version} {self}", shown)
        if answer.error_code == 0:
            if version >= 5:
                self._is_now(answer)
            if settle:
                self.cluster.settle(self.id)
        return self

    def commit(self) -> "Producer":
        return self.end(True)

    def abort(self) -> "Producer":
        return self.end(False)

    def write(
        self, topic: str, *values: bytes, partition: int = 0, version: int | None = None,
        sequence: int | None = None, transactional: bool = True, transactional_id: str | None = "-",
        attributes: int = 0, again: bool = True, times: tuple[int, ...] = (), acks: int = -1,
    ) -> "Producer":  # fmt: skip
        """Produce one batch, at the next sequence unless told otherwise."""
        version = version if version is not None else 12 if self.tv == 2 else 11
        values = values or (b"v",)
        at = self.sequences.get((topic, partition), 0) if sequence is None else sequence
        data = batch(
            *values, producer_id=self.pid, epoch=self.epoch, sequence=at, times=times,
            attributes=attributes | (0x10 if transactional else 0),
        )  # fmt: skip
        who = self.id if transactional_id == "-" else transactional_id
        asked = self.cluster.topic_id(topic) if version >= 13 else topic
        request = produce_values(asked, data, partition, acks) | {"transactional_id": who}
        end = time.monotonic() + 10
        while True:
            wire = self.cluster.leader(topic, partition)
            answer = wire.call(ApiKey.PRODUCE, version, request)
            part = answer.responses[0].partition_responses[0]
            if not again or part.error_code not in NOT_NOW or time.monotonic() > end:
                break
            time.sleep(0.02)
        self.cluster.say(
            f"write v{version} {self} as {who!r} {topic}/{partition} seq {at}+{len(values)}"
            + ("" if transactional else " outside"),
            f"{name(part.error_code)} @{part.base_offset}",
        )
        if part.error_code == 0 and sequence is None:
            self.sequences[topic, partition] = at + len(values)
        return self

    def commit_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0,
        version: int | None = None, again: bool = True, metadata: str | None = "", **member: Any,
    ) -> "Producer":  # fmt: skip
        """Send TxnOffsetCommit."""
        version = version if version is not None else 5 if self.tv == 2 else 3
        part = {"partition_index": partition, "committed_offset": offset,
                "committed_leader_epoch": -1, "committed_metadata": metadata}  # fmt: skip
        values = self._named() | {
            "group_id": group, "generation_id": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [part]}],
        } | member  # fmt: skip
        answer = self.cluster.coordinated(
            group, ApiKey.TXN_OFFSET_COMMIT, version, values, key_type=0,
            again=LATER if again else ELSEWHERE,
            codes=lambda a: {int(p.error_code) for t in a.topics for p in t.partitions},
        )  # fmt: skip
        shown = [
            f"{t.name}/{p.partition_index} {name(p.error_code)}"
            for t in answer.topics
            for p in t.partitions
        ]
        self.cluster.say(
            f"txn offset commit v{version} {self} {group!r} {topic}/{partition} {offset} "
            f"{sorted(member)}",
            shown,
        )
        return self


def ready(wire: Wire) -> None:
    """Wait until transactions can be used: a real Kafka makes its topics when first asked."""
    values = {"group_id": "any", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    with Cluster(wire) as cluster:
        cluster.coordinated("any", ApiKey.HEARTBEAT, 4, values, key_type=0)
        Producer(cluster, "any").init()


def alike_in_transactions(
    script: Callable[Concatenate[Cluster, str, ...], None],
) -> Callable[..., None]:
    """Make a script of producers a test, which compares the answers line by line."""
    return as_test(script, partial(compare_said, Cluster))


def compare_said(
    kind: Callable[[Wire], AnyCluster], recorded: Recorded, server: Served,
    script: Callable[[AnyCluster, str], None], asked: str | None = None,
) -> None:  # fmt: skip
    """Run a script of a cluster and compare what was answered, line by line."""

    def run(wire: Wire, name: str) -> list[str]:
        with kind(wire) as cluster:
            try:
                script(cluster, name)
            except Exception as error:
                error.add_note("\n".join(["Said before:", *cluster.said[-80:]]))
                raise
            return cluster.said

    compare(recorded, server, run, ready, asked=asked)
