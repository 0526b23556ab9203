"""Transactions as their coordinators tell of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kproxy.tools.client import Client, Refused, checked, chunks

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
_DESCRIBED_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLine:
    """A transaction. `start_ms`: below 0 where none is open; `partitions`: those that take part."""

    id: str
    state: str
    producer_id: int
    epoch: int
    start_ms: int
    timeout_ms: int
    partitions: dict[str, list[int]]


def transactions(
    client: Client, states: Sequence[str], prefix: str, limit: int
) -> tuple[list[TransactionLine], int]:
    """Return transactions in these states, the oldest first, and how many more there are.

    So many are described; of more than that those with the first ids.
    """
    listed: list[tuple[str, int]] = []
    for node in client.nodes():
        values = {"state_filters": tuple(states), "producer_id_filters": (), "duration_filter": -1}
        answer = client.call(66, 1, values, node)
        checked(answer.error_code, "listing transactions")
        listed += [
            (one.transactional_id, node) for one in answer.transaction_states
            if one.transactional_id.startswith(prefix)
        ]  # fmt: skip
    listed.sort()
    by_node: dict[int, list[str]] = {}
    for name, node in listed[:limit]:
        by_node.setdefault(node, []).append(name)
    found = [
        _line(one)
        for node, names in by_node.items() for some in chunks(names, _DESCRIBED_AT_ONCE)
        for one in client.call(65, 0, {"transactional_ids": tuple(some)}, node).transaction_states
        if not one.error_code  # it has ended since, or is not for this user
    ]  # fmt: skip
    found.sort(key=lambda one: (one.start_ms < 0, one.start_ms, one.id))
    return found, len(listed) - min(limit, len(listed))


def _line(one: Any) -> TransactionLine:
    start = one.transaction_start_time
    return TransactionLine(
        id=one.transactional_id, state=one.transaction_state, producer_id=one.producer_id,
        epoch=one.producer_epoch, start_ms=int(start.timestamp() * 1000) if start else -1,
        timeout_ms=int(one.transaction_timeout.total_seconds() * 1000),
        partitions={topic.topic: sorted(topic.partitions) for topic in one.topics},
    )  # fmt: skip


def abort(client: Client, name: str) -> None:
    """Abort an open transaction as a whole, and fence its producer. Raises Refused."""
    found = [
        _line(one)
        for node in client.nodes()
        for one in client.call(65, 0, {"transactional_ids": (name,)}, node).transaction_states
        if not one.error_code and one.transaction_state == OPEN_STATES[0]
    ]
    if not found:
        raise Refused(f"no transaction {name} is open")
    (line, *_) = found
    for queue, parts in line.partitions.items():
        leader = client.leaders([queue]).get((queue, parts[0]), -1)
        if leader >= 0:
            _mark(client, line, queue, parts[0], leader)
            return
    raise Refused(f"transaction {name} has no partition that is served: it ends by its timeout")


def _mark(client: Client, line: TransactionLine, queue: str, index: int, leader: int) -> None:
    marker = {
        "producer_id": line.producer_id, "producer_epoch": line.epoch, "transaction_result": False,
        "topics": [{"name": queue, "partition_indexes": (index,)}], "coordinator_epoch": 0,
    }  # fmt: skip
    for told in client.call(27, 1, {"markers": [marker]}, leader).markers:
        for topic in told.topics:
            for part in topic.partitions:
                checked(part.error_code, f"transaction {line.id}")
