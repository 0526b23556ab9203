"""Share groups that read what is committed: all of it is delivered, and nothing else."""

from typing import Any

import pytest

from kproxy.shares import share_partition
from tests.handlers.test_handlers import Client
from tests.handlers.transactional import Transactional
from tests.shares.test_polls import ACCEPT, Member, a_queue, initialise, row, set_group

STRETCH = 40
"""Offsets in one look for what was aborted, in these tests."""


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_partition, "_COMMITTED_MAX", STRETCH)


async def a_committed_queue() -> Client:
    client = await a_queue()
    await set_group(client, "share.isolation.level", "read_committed")
    return client


def transactional(client: Client, name: str) -> Transactional:
    return Transactional(client.worker.any_shard(), initialise(client), name, 2)


async def consumed(client: Client, **more: Any) -> list[int]:
    """The offsets that a member is given and acknowledges, until there are none."""
    member = Member(client, "reader")
    found: list[int] = []
    acks: list[Any] = []
    while given := await member.given(0, *acks, **more):
        acks = [(first, last, (ACCEPT,)) for first, last, _ in given]
        found += [offset for first, last, _ in given for offset in range(first, last + 1)]
    return found


@pytest.mark.parametrize("size", [3, 30, 100, STRETCH, STRETCH + 1])
async def test_committed_records_behind_an_abort_are_all_delivered(size: int) -> None:
    """FAULT: what lay across the end of a look for aborted transactions was archived, undelivered.

    With batches of 1,000 records a group lost a fifth of all of them.
    """
    client = await a_committed_queue()
    gone = transactional(client, "gone")
    gone.write(b"aborted", b"aborted")
    await client.produce("q", b"between")
    gone.end(commit=False)
    for _ in range(-(-3 * STRETCH // size) + 1):
        await client.produce("q", *[b"v"] * size)
    end = row_end(client)
    assert await consumed(client) == [2, *range(3, end)]  # a marker is the client's to pass over
    assert row(client)[:3] == (end, end, 0)


async def test_a_transaction_that_is_longer_than_a_look_is_archived_to_its_end() -> None:
    client = await a_committed_queue()
    gone, kept = transactional(client, "gone"), transactional(client, "kept")
    plain = []
    for _ in range(5):
        gone.write(*[b"aborted"] * 7)
        plain.append(kept.write(*[b"kept"] * 9))
    gone.end(commit=False)
    kept.end(commit=True)
    end = row_end(client)
    found = await consumed(client, records=10)
    assert found == [at for base in plain for at in range(base, base + 9)] + [end - 2, end - 1]
    assert row(client)[:3] == (end, end, 0)


def row_end(client: Client) -> int:
    found = client.worker.any_shard().state.partition(initialise(client))
    assert found is not None
    return found.next_offset
