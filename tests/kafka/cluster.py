"""All nodes of a cluster behind one connection, and a record of what they answered, to be compared.

Requests go to the coordinator of an id or group, or to the leader of a partition, as clients send
them. Every request leaves one line in `Cluster.said`. Producer ids are p1, p2, … in the order in
which they turn up.
"""

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Self
from uuid import UUID

from kio.schema.errors import ErrorCode

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.canonical import unheard
from tests.kafka.groups.members import commit_values
from tests.wire import TODAY_MS, Wire, batch, batches, fetch_values

ELSEWHERE = {14, 15, 16}  # loading, not available, not the coordinator
LATER = ELSEWHERE | {51}  # CONCURRENT_TRANSACTIONS
LONG_AGO = TODAY_MS - 1_000_000  # for records whose time matters
OFFSETS_TOPIC = "__consumer_offsets"

Address = tuple[str, int]


def name(code: Any) -> str:
    """Return an error's name as Kafka spells it."""
    return str(code.name).upper()


class Cluster:
    """Connections to every node behind the one that is given, and all that was answered."""

    def __init__(self, wire: Wire) -> None:
        self.wire = self._given = wire
        self._wires: dict[Address, Wire] = {wire.socket.getpeername()[:2]: wire}
        self._coordinators: dict[tuple[int, str], Wire] = {}
        self._leaders: dict[tuple[str, int], Wire] = {}
        self._pids: dict[int, str] = {}
        self.said: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            if wire is not self._given:
                wire.socket.close()

    @contextmanager
    def anew(self) -> Iterator[Self]:
        """Give one that knows no topic yet, and says what it hears in the same place."""
        address = self.wire.socket.getpeername()[:2]
        with Wire(*address) as wire, type(self)(wire) as other:
            other.said = self.said
            yield other

    def say(self, what: str, answer: Any) -> None:
        self.said.append(f"{what} -> {answer}")

    def pid(self, producer_id: int) -> str:
        if producer_id < 0:
            return str(producer_id)
        return self._pids.setdefault(producer_id, f"p{len(self._pids) + 1}")

    # -- who is asked

    def at(self, host: str, port: int) -> Wire:
        if (host, port) not in self._wires:
            self._wires[host, port] = Wire(host, port)
        return self._wires[host, port]

    def coordinator(self, key: str, key_type: int = 1) -> Wire:
        found = self._coordinators.get((key_type, key))
        if found is None:

            def look() -> Any:
                values = {"key_type": key_type, "coordinator_keys": (key,)}
                node = self.wire.call(ApiKey.FIND_COORDINATOR, 4, values).coordinators[0]
                return node if node.error_code == 0 else None

            node = eventually(look)
            found = self._coordinators[key_type, key] = self.at(node.host, node.port)
        return found

    def leader(self, topic: str, partition: int = 0) -> Wire:
        found = self._leaders.get((topic, partition))
        if found is None:
            answer = self.wire.metadata(topic, create=False)
            nodes = {b.node_id: (b.host, b.port) for b in answer.brokers}
            leaders = {p.partition_index: p.leader_id for p in answer.topics[0].partitions}
            where = nodes.get(leaders.get(partition, -1))
            found = self.at(*where) if where else self.wire
            if where:
                self._leaders[topic, partition] = found
        return found

    def coordinated(
        self, asked: str, key: int, version: int, values: dict[str, Any], *,
        key_type: int = 1, codes: Callable[[Any], set[int]] = lambda a: {int(a.error_code)},
        again: frozenset[int] | set[int] = frozenset(LATER),
    ) -> Any:  # fmt: skip
        """Ask a coordinator, again while it answers that it cannot tell yet."""
        end = time.monotonic() + 20
        while True:
            # An empty id has no coordinator: whoever is connected answers.
            wire = self.coordinator(asked, key_type) if asked else self.wire
            try:
                answer = wire.call(key, version, values)
            except ConnectionError:
                # Closed by kproxy where a request without KIP-890 is for a transaction begun by
                # it: it might have been sent for an earlier one. Clients connect again.
                wire = self._connected_again(wire)
                answer = wire.call(key, version, values)
            if not codes(answer) & again or time.monotonic() > end:
                return answer
            self._coordinators.pop((key_type, asked), None)
            time.sleep(0.02)

    def _connected_again(self, wire: Wire) -> Wire:
        (where,) = [where for where, known in self._wires.items() if known is wire]
        made = self._wires[where] = Wire(*where)
        for known in (self._coordinators, self._leaders):
            for key in [key for key, one in known.items() if one is wire]:
                known[key] = made  # type: ignore[index]
        if self.wire is wire:
            self.wire = made
        wire.socket.close()
        return made

    # -- topics

    def make(self, topic: str, partitions: int = 1, **configs: str) -> str:
        assert self.wire.create(topic, partitions, **configs).error_code == 0

        def there(index: int) -> bool:
            self._leaders.pop((topic, index), None)
            return self.leader(topic, index).list_offset(topic, -1, index).error_code == 0

        for index in range(partitions):
            eventually(lambda i=index: there(i))
        return topic

    def plain_write(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Write a batch without a producer id."""
        answer = self.leader(topic, partition).produce(topic, batch(*values), partition)
        self.say(f"plain write {len(values)}", f"{name(answer.error_code)} @{answer.base_offset}")

    def fetch(
        self, topic: str, offset: int = 0, *, partition: int = 0, isolation: int = 1,
        version: int = 12, **more: Any,
    ) -> Any:  # fmt: skip
        asked = self.topic_id(topic) if version >= 13 else topic
        values = fetch_values({(asked, partition): offset}, isolation=isolation, **more)
        answer = self.leader(topic, partition).call(1, version, values)
        part = answer.responses[0].partitions[0]
        aborted = part.aborted_transactions
        found = [(base, data) for base, data in batches(part.records) if is_whole(data)]
        if aborted is not None:  # a real Kafka also names some that begin behind what it gives
            aborted = sorted(
                (self.pid(a.producer_id), a.first_offset)
                for a in aborted
                if found and a.first_offset <= found[-1][0]
            )
        shown = " ".join(self.shown(data) for _, data in found)
        self.say(
            f"fetch v{version} {topic}/{partition} @{offset} isolation {isolation}",
            f"{name(part.error_code)} start {getattr(part, 'log_start_offset', 0)} "
            f"lso {part.last_stable_offset} high {part.high_watermark} aborted {aborted} [{shown}]",
        )
        return part

    def shown(self, data: bytes) -> str:
        """Return a batch in short: offsets, kind, producer."""
        base, last = struct.unpack_from(">q", data)[0], struct.unpack_from(">i", data, 23)[0]
        attributes, pid, epoch, sequence, count = batch_head(data)
        if attributes & 0x20:
            kind, _ = marker(data)
            return f"<{base} {('abort', 'commit')[kind]} {self.pid(pid)}/{epoch}>"
        mark = "txn " if attributes & 0x10 else ""
        gap = "" if count == last + 1 else f" of {count}"
        return f"<{base}-{base + last}{gap} {mark}{self.pid(pid)}/{epoch} seq {sequence}>"

    def offsets(
        self, topic: str, *times: int, partition: int = 0, versions: tuple[int, ...] = (8,)
    ) -> None:
        """Send ListOffsets, in both isolation levels; times are from `LONG_AGO` on."""
        for when, version, isolation in product(times, versions, (0, 1)):
            timestamp = when if when < 0 else LONG_AGO + when
            part = {"partition_index": partition, "timestamp": timestamp,
                    "current_leader_epoch": -1}  # fmt: skip
            values = {
                "replica_id": -1, "isolation_level": isolation, "timeout": 1000,
                "topics": [{"name": topic, "partitions": [part]}],
            }  # fmt: skip
            answer = self.leader(topic, partition).call(ApiKey.LIST_OFFSETS, version, values)
            found = answer.topics[0].partitions[0]
            at = found.timestamp
            self.say(
                f"offset v{version} {topic}/{partition} by {when} isolation {isolation}",
                f"{name(found.error_code)} {found.offset} time "
                f"{at if at < 0 else at - LONG_AGO if at < TODAY_MS else 'now'}",
            )

    def topic_id(self, topic: str) -> UUID:
        return self.wire.metadata(topic, create=False).topics[0].topic_id

    def end_offset(self, topic: str, partition: int = 0) -> int:
        return int(self.leader(topic, partition).list_offset(topic, -1, partition).offset)

    # -- groups

    def committed(
        self, group: str, topic: str, *, partition: int = 0, stable: bool = True, version: int = 8
    ) -> None:
        """Say the answer to OffsetFetch."""
        asked_topic = {"name": topic, "partition_indexes": (partition,)}
        asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": [asked_topic]}
        values = (
            {"groups": [asked], "require_stable": stable}
            if version >= 8
            else {"group_id": group, "topics": [asked_topic], "require_stable": stable}
        )
        answer = self.coordinated(
            group, ApiKey.OFFSET_FETCH, version, values, key_type=0, again=ELSEWHERE,
            codes=lambda a: {int((a.groups[0] if version >= 8 else a).error_code)},
        )  # fmt: skip
        found = answer.groups[0] if version >= 8 else answer
        part = found.topics[0].partitions[0]
        self.say(
            f"offset fetch v{version} of {group} {topic}/{partition} stable {stable}",
            f"{name(found.error_code)} {name(part.error_code)} {part.committed_offset} "
            f"{part.metadata!r}",
        )

    def commit_plainly(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        answer = self.coordinator(group, 0).call(
            ApiKey.OFFSET_COMMIT, 8, commit_values(group, topic, offset, partition=partition)
        )
        self.say(
            f"plain commit {group} {topic} {offset}",
            name(answer.topics[0].partitions[0].error_code),
        )

    # -- looking at transactions

    def state(self, transactional_id: str) -> "State":
        """Send DescribeTransactions."""
        end = time.monotonic() + 20
        while True:
            wire = self.coordinator(transactional_id) if transactional_id else self.wire
            wire.send(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": (transactional_id,)})
            found = State(wire.receive_frame())
            if found.error not in ELSEWHERE or time.monotonic() > end:
                return found
            self._coordinators.pop((1, transactional_id), None)
            time.sleep(0.02)

    def settle(self, transactional_id: str) -> None:
        """Wait until markers are written, and until who serves each partition has seen them."""
        with unheard():
            eventually(
                lambda: not self.state(transactional_id).state.startswith("Prepare"), period=0.01
            )
            found = self.state(transactional_id)
            if found.state.startswith("Complete"):
                for topic, partition in list(self._leaders):
                    eventually(lambda t=topic, p=partition: not self._is_open(found.pid, t, p))

    def _is_open(self, producer_id: int, topic: str, partition: int) -> bool:
        values = {"topics": [{"name": topic, "partition_indexes": (partition,)}]}
        answer = self.leader(topic, partition).call(ApiKey.DESCRIBE_PRODUCERS, 0, values)
        return any(
            producer.producer_id == producer_id and producer.current_txn_start_offset >= 0
            for producer in answer.topics[0].partitions[0].active_producers
        )

    def describe(self, transactional_id: str) -> None:
        found = self.state(transactional_id)
        topics: dict[str, Any] = dict(sorted(found.topics.items()))
        if OFFSETS_TOPIC in topics:
            topics[OFFSETS_TOPIC] = "some"  # which depends on how many there are
        self.say(
            f"describe {transactional_id!r}",
            f"{name(ErrorCode(found.error))} {found.state!r} "
            f"{found.pid if found.error else self.pid(found.pid)}/{found.epoch} "
            f"timeout {found.timeout_ms} "
            f"started {'lately' if found.started > TODAY_MS - 60_000 else found.started} {topics}",
        )

    def list_transactions(self, prefix: str, version: int = 2, **filters: Any) -> None:
        """List the transactions of all nodes with this prefix."""
        values = {
            "state_filters": (), "producer_id_filters": (), "duration_filter": -1,
            "transactional_id_pattern": None,
        } | filters  # fmt: skip
        found, unknown, codes = set(), set(), set()
        for address in {(b.host, b.port) for b in self.wire.metadata().brokers}:
            answer = self.at(*address).call(ApiKey.LIST_TRANSACTIONS, version, values)
            codes.add(name(answer.error_code))
            unknown |= set(answer.unknown_state_filters)
            found |= {
                (s.transactional_id, self.pid(s.producer_id), s.transaction_state)
                for s in answer.transaction_states
                if s.transactional_id.startswith(prefix)
            }
        shown = {
            k: [self.pid(p) for p in v] if k == "producer_id_filters" else v
            for k, v in filters.items()
        }
        self.say(
            f"list v{version} {shown}", f"{sorted(codes)} unknown {sorted(unknown)} {sorted(found)}"
        )

    def producers(self, topic: str, partition: int = 0) -> None:
        """Describe producers, but for the coordinators' epochs, which kproxy does not have."""
        values = {"topics": [{"name": topic, "partition_indexes": (partition,)}]}
        answer = self.leader(topic, partition).call(ApiKey.DESCRIBE_PRODUCERS, 0, values)
        part = answer.topics[0].partitions[0]
        shown = sorted(
            f"{self.pid(p.producer_id)}/{p.producer_epoch} last {p.last_sequence} "
            f"began {p.current_txn_start_offset}"
            for p in part.active_producers
        )
        self.say(f"producers of {topic}/{partition}", f"{name(part.error_code)} {shown}")


class State:
    """The state in an answer to DescribeTransactions; by hand, as kio refuses a time of -1."""

    def __init__(self, frame: bytes) -> None:
        self._data = frame
        self._at = 4 + 1 + 4  # correlation id, tags, throttle time
        assert self._count() == 1
        (self.error,) = self._take(">h")
        self.id, self.state = self._text(), self._text()
        self.timeout_ms, self.started, self.pid, self.epoch = self._take(">iqqh")
        self.topics: dict[str, list[int]] = {}
        for _ in range(self._count()):
            topic = self._text()
            self.topics[topic] = sorted(self._take(">i")[0] for _ in range(self._count()))
            self._at += 1

    def _take(self, form: str) -> Any:
        values = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return values

    def _count(self) -> int:
        """Read the count of an array, or of a text's bytes: a varint of one more."""
        value = shift = 0
        while True:
            (byte,) = self._take(">B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - 1

    def _text(self) -> str:
        size = self._count()
        self._at += size
        return self._data[self._at - size : self._at].decode()


def is_whole(data: bytes) -> bool:
    """Whether a batch is whole: a real Kafka cuts off the last one where bytes run out."""
    return len(data) >= 61 and len(data) == 12 + int.from_bytes(data[8:12], "big")


def batch_head(data: bytes) -> tuple[int, int, int, int, int]:
    """Return attributes, producer id, epoch, sequence, count."""
    (attributes,) = struct.unpack_from(">h", data, 21)
    return attributes, *struct.unpack_from(">qhii", data, 43)


def marker(data: bytes) -> tuple[int, int]:
    """Return (0 abort or 1 commit, coordinator epoch) of a control batch, and check its form."""
    assert len(data) == 78, len(data)
    attributes, _, _, sequence, count = batch_head(data)
    # A real Kafka stamps them as the topic is: 0x38 with LogAppendTime.
    assert (attributes & ~8, sequence, count) == (0x30, -1, 1), (attributes, sequence, count)
    assert struct.unpack_from(">i", data, 23) == (0,)  # last offset delta
    record = data[61:]
    # length 16, attributes, time and offset delta, a key of 4, a value of 6, no headers
    assert record[:5] == bytes([32, 0, 0, 0, 8]), record
    assert record[9:10] == bytes([12]), record
    assert record[16:] == b"\0", record
    version, kind = struct.unpack_from(">hh", record, 5)
    value_version, coordinator_epoch = struct.unpack_from(">hi", record, 10)
    assert (version, value_version) == (0, 0)
    return kind, coordinator_epoch
