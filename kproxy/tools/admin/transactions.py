"""Transactions as their coordinators tell of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kproxy.tools.client import Client, checked, chunks

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
