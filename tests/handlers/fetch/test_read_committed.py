"""The view of transactions: fetches, offsets by time, producers, offsets of groups."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code
from kproxy.fetching import poll, streamed_response
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.types import PartitionKey
from tests import bodies
from tests.handlers.test_handlers import Client, parts
from tests.handlers.transactional import Transactional
from tests.harness import patient
from tests.present import present
from tests.wire import batches

COMMITTED = 1
UNSTABLE = Code.UNSTABLE_OFFSET_COMMIT


def shard_of(client: Client) -> Any:
    return client.worker.any_shard()


def key_of(client: Client, name: str = "q") -> PartitionKey:
    return present(client.worker.catalogue.find(name)).queue_id, 0


def producer(client: Client, name: str = "t", version: int = 2, queue: str = "q") -> Transactional:
    return Transactional(shard_of(client), key_of(client, queue), name, version)


async def with_a_queue(*names: str) -> Client:
    client = Client()
    await client.metadata(*(names or ("q",)))
    return client


async def fetched(client: Client, offset: int, isolation: int, version: int = 12) -> Any:
    answer = await client.fetch({("q", 0): offset}, version, isolation=isolation)
    return answer.responses[0].partitions[0]


def shown(part: Any) -> tuple[int, int, int, list[tuple[int, int]] | None, list[int]]:
    """Return (code, last stable offset, high watermark, aborted, base offsets)."""
    aborted = part.aborted_transactions
    if aborted is not None:
        aborted = [(one.producer_id, one.first_offset) for one in aborted]
    bases = [base for base, _ in batches(part.records)]
    return part.error_code, part.last_stable_offset, part.high_watermark, aborted, bases


@pytest.mark.parametrize("version", range(4, 13))
async def test_a_fetch_ends_at_the_last_stable_offset(version: int) -> None:
    client = await with_a_queue()
    one, other = producer(client, "one"), producer(client, "other")
    one.write(b"a", b"b")
    other.write(b"c")
    await client.produce("q", b"d")

    async def seen(offset: int) -> tuple[Any, Any]:
        return (
            shown(await fetched(client, offset, 0, version)),
            shown(await fetched(client, offset, COMMITTED, version)),
        )

    assert await seen(0) == ((0, 0, 4, None, [0, 2, 3]), (0, 0, 4, [], []))
    assert await seen(3) == ((0, 0, 4, None, [3]), (0, 0, 4, [], []))
    assert await seen(4) == ((0, 0, 4, None, []), (0, 0, 4, [], []))
    assert await seen(-1) == ((1, -1, -1, None, []), (1, -1, -1, None, []))
    one.end(commit=False)
    gone = (one.producer_id, 0)
    assert await seen(0) == ((0, 2, 5, None, [0, 2, 3, 4]), (0, 2, 5, [gone], [0]))
    assert await seen(2) == ((0, 2, 5, None, [2, 3, 4]), (0, 2, 5, [], []))
    other.end(commit=True)
    assert await seen(0) == ((0, 6, 6, None, [0, 2, 3, 4, 5]), (0, 6, 6, [gone], [0, 2, 3, 4, 5]))
    assert await seen(4) == ((0, 6, 6, None, [4, 5]), (0, 6, 6, [gone], [4, 5]))
    assert await seen(5) == ((0, 6, 6, None, [5]), (0, 6, 6, [], [5]))


async def test_a_marker_is_given_with_its_place() -> None:
    client = await with_a_queue()
    one = producer(client)
    one.write(b"a")
    one.end(commit=True, time_ms=7)
    ((_, data),) = batches((await fetched(client, 1, COMMITTED)).records)
    assert len(data) == 78
    assert data[:8] == (1).to_bytes(8, "big")


async def test_aborted_transaction_is_listed_once_however_often_it_is_asked_for() -> None:
    client = await with_a_queue()
    one = producer(client)
    one.write(b"a")
    one.end(commit=False)
    answer = await client.fetch({("q", 0): 0}, epoch=0, isolation=COMMITTED)
    for epoch in range(1, 4):
        more: dict[str, Any] = {"session_id": answer.session_id, "epoch": epoch}
        again = await client.fetch({}, isolation=COMMITTED, **more)
        assert len(parts(again)["q", 0].aborted_transactions) == 1


async def test_only_what_can_be_read_counts_as_enough() -> None:
    client = await with_a_queue()
    await client.produce("q", b"a")
    one = producer(client)
    one.write(b"b" * 1000)
    with anyio.move_on_after(0.2) as waited:
        await client.fetch({("q", 0): 0}, min_bytes=500, wait_ms=60_000, isolation=COMMITTED)
    assert waited.cancelled_caught
    answer = await client.fetch({("q", 0): 0}, min_bytes=500, wait_ms=1, isolation=COMMITTED)
    assert shown(parts(answer)["q", 0])[4] == [0]


# -- how often a partition is looked at


async def counted(work: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
    """Return the result, and how many looks it took."""
    looks = 0
    real = streamed_response.plan_read

    def look(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poll, "plan_read", look)
        return await work(), looks


async def behind_open_ones(count: int) -> tuple[Client, list[Transactional]]:
    names = [f"q{number}" for number in range(count)]
    client = await with_a_queue(*names)
    makers = [producer(client, name, queue=name) for name in names]
    for one in makers:
        one.write(b"v")
    return client, makers


async def test_a_session_behind_open_transactions_does_not_look_again_and_again() -> None:
    """Planted mistake: compared with the high watermark all are held back, in each poll."""
    client, makers = await behind_open_ones(100)
    wanted: Any = {(f"q{number}", 0): 0 for number in range(100)}
    first = await client.fetch(wanted, epoch=0, isolation=COMMITTED)
    more: dict[str, Any] = {"session_id": first.session_id, "isolation": COMMITTED}
    for epoch in range(1, 4):
        answer, looks = await counted(lambda: client.fetch({}, epoch=epoch, wait_ms=10, **more))  # noqa: B023
        assert (looks, answer.responses) == (0, ())
    makers[3].write(b"v")
    answer, looks = await counted(lambda: client.fetch({}, epoch=4, **more))
    assert (looks, list(parts(answer))) == (1, [("q3", 0)])
    assert shown(parts(answer)["q3", 0]) == (0, 0, 2, [], [])
    _, looks = await counted(lambda: client.fetch({}, epoch=5, **more))
    assert looks == 0


@pytest.mark.parametrize("in_session", [False, True])
async def test_a_long_poll_looks_at_what_changes_and_no_more(in_session: bool) -> None:
    """Records that cannot be read yet wake it: of all partitions each is looked at once."""
    client, makers = await behind_open_ones(100)
    wanted: Any = {(f"q{number}", 0): 0 for number in range(100)}
    epoch, more = -1, dict[str, Any]()
    if in_session:
        first = await client.fetch(wanted, epoch=0, isolation=COMMITTED)
        wanted, epoch, more = {}, 1, {"session_id": first.session_id}

    async def waited() -> Any:
        answers = []
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                answers.append(
                    await client.fetch(
                        wanted, epoch=epoch, wait_ms=60_000, isolation=COMMITTED, **more
                    )
                )

            tasks.start_soon(wait)
            await anyio.sleep(0.05)
            for number in range(50):
                makers[number].write(b"w")
                await anyio.sleep(0.001)
            makers[7].end(commit=True)
        return answers[0]

    with anyio.fail_after(patient(30)):
        answer, looks = await counted(waited)
    first_looks = looks - 50 - 1
    assert first_looks in ((0,) if in_session else (100, 200))  # twice where others had their turn
    found = parts(answer)
    assert shown(found["q7", 0]) == (0, 3, 3, [], [0, 1, 2])
    assert [name for (name, _), part in found.items() if part.records] == ["q7"]
    assert {name: part.high_watermark for (name, _), part in found.items()} == {
        f"q{n}": 3 if n == 7 else 1 + (n < 50) for n in range(50 if in_session else 100)
    }
    if not in_session:
        assert list(found) == list(wanted)


async def test_further_reads_of_a_session_are_answered() -> None:
    """The isolation level comes with each request."""
    client, _ = await behind_open_ones(1)
    first = await client.fetch({("q0", 0): 0}, epoch=0, isolation=COMMITTED)
    more: dict[str, Any] = {"session_id": first.session_id}
    assert (await client.fetch({}, epoch=1, isolation=COMMITTED, **more)).responses == ()
    answer = await client.fetch({}, epoch=2, isolation=0, **more)
    assert shown(parts(answer)["q0", 0]) == (0, 0, 1, None, [0])


# -- offsets by time


async def listed(client: Client, wanted: int, isolation: int, version: int = 10) -> tuple[int, int]:
    part = {"partition_index": 0, "timestamp": wanted}
    values = {
        "replica_id": -1, "isolation_level": isolation, "timeout": 1000,
        "topics": [{"name": "q", "partitions": [part]}],
    }  # fmt: skip
    answer = await client.call(ApiKey.LIST_OFFSETS, version, values)
    found = answer.topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset, found.timestamp


async def test_offsets_that_are_not_stable_are_not_found() -> None:
    client = await with_a_queue()
    one = producer(client)
    await client.produce("q", b"v")
    first = (await listed(client, -3, 0))[1]
    one.write(b"a", b"b", times=(first + 10, first + 20))
    for isolation, expected in (
        (0, {-1: (3, -1), -2: (0, -1), -3: (2, first + 20), first + 1: (1, first + 10)}),
        (1, {-1: (1, -1), -2: (0, -1), -3: (-1, -1), first + 1: (-1, -1), first: (0, first)}),
    ):
        for wanted, found in expected.items():
            assert await listed(client, wanted, isolation) == found
    assert await listed(client, -1, COMMITTED, version=2) == (1, -1)
    one.end(commit=True, time_ms=first + 30)
    for isolation in (0, 1):
        assert await listed(client, -1, isolation) == (4, -1)
        assert await listed(client, -3, isolation) == (3, first + 30)  # a marker, as in Kafka
        assert await listed(client, first + 21, isolation) == (3, first + 30)
        assert await listed(client, first + 11, isolation) == (2, first + 20)


# -- producers


async def described(client: Client) -> list[tuple[int, ...]]:
    values = {"topics": [{"name": "q", "partition_indexes": (0,)}]}
    answer = await client.call(ApiKey.DESCRIBE_PRODUCERS, 0, values)
    part = answer.topics[0].partitions[0]
    assert part.error_code == 0
    return [
        (p.producer_epoch, p.last_sequence, p.coordinator_epoch, p.current_txn_start_offset)
        for p in part.active_producers
    ]


@pytest.mark.parametrize(("version", "after"), [(1, (0, 1, 0, -1)), (2, (1, -1, 0, -1))])
async def test_open_transactions_of_producers(version: int, after: tuple[int, ...]) -> None:
    client = await with_a_queue()
    await client.produce("q", b"v")
    one = producer(client, version=version)
    assert await described(client) == []
    one.write(b"a", b"b")
    assert await described(client) == [(0, 1, -1, 1)]
    one.end(commit=True)
    assert await described(client) == [after]
    one.begin()
    assert await described(client) == [after]
    one.write(b"c")
    assert [found[2:] for found in await described(client)] == [(0, 4)]


# -- offsets of groups


async def offsets(
    client: Client, *, stable: bool, version: int = 8, everything: bool = False
) -> dict[int, tuple[int, int, str]]:
    topics = None if everything else [{"name": "q", "partition_indexes": (0, 1)}]
    group = {"group_id": "g", "topics": topics}
    values = {"groups": [group], "require_stable": stable, **group}
    answer = await client.call(ApiKey.OFFSET_FETCH, version, values)
    found = answer.groups[0] if version >= 8 else answer
    assert found.error_code == 0
    return {
        part.partition_index: (part.error_code, part.committed_offset, part.metadata)
        for topic in found.topics
        for part in topic.partitions
    }


async def committed(client: Client, offset: int) -> None:
    values = bodies.commit("g", "q", offset, text="m")
    answer = await client.call(ApiKey.OFFSET_COMMIT, 8, values)
    assert answer.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("version", [7, 8])
async def test_offsets_that_wait_for_a_transaction(version: int, commit: bool) -> None:
    client = await with_a_queue()
    key, one = key_of(client), producer(client)
    await committed(client, 5)
    none, before, waits = (0, -1, ""), (0, 5, "m"), (UNSTABLE, -1, "")
    for stable in (False, True):
        assert await offsets(client, stable=stable, version=version) == {0: before, 1: none}
    one.begin(group="g")
    one.commit_offset(key, 9)
    assert await offsets(client, stable=False, version=version) == {0: before, 1: none}
    assert await offsets(client, stable=True, version=version) == {0: waits, 1: none}
    alone: dict[str, Any] = {"version": version, "everything": True}
    assert await offsets(client, stable=False, **alone) == {0: before}
    assert await offsets(client, stable=True, **alone) == {0: waits}
    one.end(commit)
    after = (0, 9, "") if commit else before
    for stable in (False, True):
        assert await offsets(client, stable=stable, version=version) == {0: after, 1: none}
