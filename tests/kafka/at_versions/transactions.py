"""Producers and transactions: their codes changed most often from version to version."""

from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import made
from tests.kafka.at_versions.asked import Asked, Values
from tests.kafka.at_versions.records import with_id
from tests.kafka.canonical import unheard
from tests.kafka.groups.members import commit_values
from tests.wire import batch, produce_values

NOBODY = 10**9  # a producer id that nobody has


def init(asked: Asked, name: str, pid: int = -1, epoch: int = -1) -> tuple[int, int]:
    """Return the producer id and epoch that a transactional id is given."""
    values = {
        "transactional_id": name, "transaction_timeout": 60_000,
        "producer_id": pid, "producer_epoch": epoch,
    }  # fmt: skip
    answer = asked.call(ApiKey.INIT_PRODUCER_ID, 4, values)
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def whose(name: str, pid: int, epoch: int) -> Values:
    return {
        "transactional_id": name, "producer_id": pid, "producer_epoch": epoch,
        "v3_and_below_transactional_id": name, "v3_and_below_producer_id": pid,
        "v3_and_below_producer_epoch": epoch,
    }  # fmt: skip


def taking_part(queue: str, index: int = 0) -> Values:
    topics = [{"name": queue, "partitions": (index,)}]
    return {"v3_and_below_topics": topics, "topics": topics, "verify_only": False}


def opened(asked: Asked, name: str) -> tuple[int, int]:
    """Begin a transaction with the requests before KIP-890, and write in it."""
    pid, epoch = init(asked, name)
    values = whose(name, pid, epoch) | taking_part(asked.name)
    asked.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, values)
    records = batch(b"v", producer_id=pid, epoch=epoch, sequence=0, attributes=0x10)
    values = produce_values(asked.name, records) | {"transactional_id": name}
    asked.call(ApiKey.PRODUCE, 9, values)
    return pid, epoch


def ended(asked: Asked, name: str, version: int = 4, *, commits: bool = True) -> Values:
    """Begin and end a transaction; return who did so."""
    who = whose(name, *opened(asked, name))
    asked.call(ApiKey.END_TXN, version, who | {"committed": commits})
    with unheard():
        eventually(lambda: state(asked, name).startswith("Complete"))
    return who


def state(asked: Asked, name: str) -> str:
    """Return how far the transaction of an id is. It is complete once its markers are written."""
    answer = asked.wire.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": (name,)})
    return str(answer.transaction_states[0].transaction_state)


def init_producer_id(asked: Asked) -> None:
    made(asked.wire, asked.name)
    name = f"{asked.name}-fenced"
    pid, _ = init(asked, name)
    init(asked, name)

    def given(what: str, transactional_id: str | None, **changes: Any) -> None:
        values = {
            "transactional_id": transactional_id, "transaction_timeout": 60_000,
            "producer_id": -1, "producer_epoch": -1,
        } | changes  # fmt: skip
        asked.each(what, ApiKey.INIT_PRODUCER_ID, values)

    given("without an id", None)
    given("an empty id", "")
    given("a timeout too long", name, transaction_timeout=10**9)
    given("no timeout", name, transaction_timeout=0)
    given("a producer without an epoch", name, producer_id=pid)
    given("another producer", name, producer_id=NOBODY, producer_epoch=0)
    given("without an id, a producer", None, producer_id=NOBODY, producer_epoch=0)

    def fenced(version: int) -> Values:
        own = f"{asked.name}-v{version}"
        pid, epoch = init(asked, own)
        init(asked, own)
        init(asked, own)
        return {"transactional_id": own, "transaction_timeout": 60_000,
                "producer_id": pid, "producer_epoch": epoch}  # fmt: skip

    asked.each("a fenced producer", ApiKey.INIT_PRODUCER_ID, fenced)


def each_own(
    asked: Asked, what: str, key: ApiKey, whole: Any, *, begin: Any = opened, **changes: Any
) -> None:
    """Ask in a transaction of each version's own; `changes` are of who asks."""

    def values(version: int) -> Values:
        name = f"{asked.name}-{len(asked.said)}-v{version}"
        who = begin(asked, name)
        who = who if isinstance(who, dict) else whose(name, *who)
        if "producer_epoch" in changes:
            who = whose(name, who["producer_id"], who["producer_epoch"] + changes["producer_epoch"])
        if "producer_id" in changes:
            who = whose(name, changes["producer_id"], who["producer_epoch"])
        if "transactional_id" in changes:
            who = whose(changes["transactional_id"], who["producer_id"], who["producer_epoch"])
        given: Values = whole(who)
        return given

    asked.each(what, key, values)


WRONG: tuple[tuple[str, Values], ...] = (
    ("as it should be", {}),
    ("an epoch ahead", {"producer_epoch": 1}),
    ("another producer", {"producer_id": NOBODY}),
    ("an unknown id", {"transactional_id": "nobody's"}),
    ("an empty id", {"transactional_id": ""}),
)


def fenced_one(asked: Asked, name: str) -> Values:
    """Return who was fenced by another of the same id."""
    who = whose(name, *opened(asked, name))
    init(asked, name)
    return who


def in_all_ways(asked: Asked, key: ApiKey, whole: Any) -> None:
    """Ask by all that are wrong, by one that was fenced, and by one whose transaction ended."""
    with_id(asked.wire, asked.name)
    for what, changes in WRONG:
        each_own(asked, what, key, whole, **changes)
    each_own(asked, "a fenced producer", key, whole, begin=fenced_one)
    each_own(asked, "none begun", key, whole, begin=init)
    each_own(asked, "one that was committed", key, whole, begin=ended)
    each_own(asked, "one that was aborted", key, whole, begin=partial(ended, commits=False))


def add_partitions(asked: Asked) -> None:
    def whole(queue: str, index: int, who: Values) -> Values:
        one = who | taking_part(queue, index)
        return one | {"transactions": [one]}

    in_all_ways(asked, ApiKey.ADD_PARTITIONS_TO_TXN, partial(whole, asked.name, 0))
    for what, queue, index in (
        ("unknown queue", f"{asked.name}-none", 0), ("unknown partition", asked.name, 7),
        ("a bad name", "a b", 0),
    ):  # fmt: skip
        each_own(asked, what, ApiKey.ADD_PARTITIONS_TO_TXN, partial(whole, queue, index))


def add_offsets(asked: Asked) -> None:
    group = {"group_id": f"{asked.name}-group"}
    in_all_ways(asked, ApiKey.ADD_OFFSETS_TO_TXN, lambda who: who | group)
    each_own(asked, "an empty group", ApiKey.ADD_OFFSETS_TO_TXN, lambda who: who | {"group_id": ""})


def end(asked: Asked) -> None:
    for commits in (True, False):
        asked.said.append(f"commits: {commits}")
        in_all_ways(asked, ApiKey.END_TXN, lambda who, c=commits: who | {"committed": c})

    def by_new(asked: Asked, name: str) -> Values:
        return ended(asked, name, 5)

    both = {"committed": True}
    each_own(asked, "one that was ended with KIP-890", ApiKey.END_TXN,
             lambda who: who | both, begin=by_new)  # fmt: skip


def offset_commit(asked: Asked) -> None:
    queue = asked.name

    def with_group(asked: Asked, name: str) -> tuple[int, int]:
        pid, epoch = opened(asked, name)
        who = whose(name, pid, epoch) | {"group_id": f"{queue}-group"}
        asked.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, who)
        return pid, epoch

    def whole(who: Values, **changes: Any) -> Values:
        part = {k: changes.pop(k) for k in ("partition", "metadata", "queue") if k in changes}
        named = part.pop("queue", queue)
        given = commit_values(f"{queue}-group", named, 5, **part)
        if asked.newer:
            known = with_id(asked.wire, queue) if named == queue else UUID(int=7)
            given["topics"][0]["topic_id"] = known
        return given | {"generation_id": -1} | who | changes

    key = ApiKey.TXN_OFFSET_COMMIT
    in_all_ways(asked, key, whole)
    for what, changes in (
        ("with its group", {}), ("an unknown member", {"member_id": "stranger"}),
        ("an old generation", {"generation_id": 7}), ("an empty group", {"group_id": ""}),
        ("a member of an unknown group", {"member_id": "stranger", "generation_id": 3}),
        ("a fenced instance", {"group_instance_id": "none", "member_id": "stranger"}),
        ("unknown partition", {"partition": 7}), ("a long text", {"metadata": "x" * 5000}),
        ("unknown queue", {"queue": f"{queue}-none"}),
    ):  # fmt: skip
        each_own(asked, what, key, partial(whole, **changes), begin=with_group)


def produce_within(asked: Asked) -> None:
    """Write in transactions; which codes a client is told depends on the version."""

    def whole(who: Values) -> Values:
        records = batch(
            b"w", producer_id=who["producer_id"], epoch=who["producer_epoch"], sequence=1,
            attributes=0x10,
        )  # fmt: skip
        given = produce_values(asked.name, records)
        return given | {"transactional_id": who["transactional_id"]}

    key = ApiKey.PRODUCE
    topic_id = with_id(asked.wire, asked.name)

    def by_both(who: Values) -> Values:
        given = whole(who)
        given["topic_data"][0]["topic_id"] = topic_id
        return given

    for what, changes in WRONG[:4]:
        each_own(asked, what, key, by_both, **changes)
    each_own(asked, "a fenced producer", key, by_both, begin=fenced_one)
    each_own(asked, "one that was committed", key, by_both, begin=ended)
    each_own(asked, "one that was aborted", key, by_both, begin=partial(ended, commits=False))


def write_markers(asked: Asked) -> None:
    made(asked.wire, asked.name)
    for what, queue, index in (
        ("known", asked.name, 0), ("unknown queue", f"{asked.name}-none", 0),
    ):  # fmt: skip
        topics = [{"name": queue, "partition_indexes": (index,)}]
        marker = {
            "producer_id": NOBODY, "producer_epoch": 0, "transaction_result": False,
            "topics": topics, "coordinator_epoch": 0,
        }  # fmt: skip
        asked.each(what, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})


def describe(asked: Asked) -> None:
    made(asked.wire, asked.name)
    name = f"{asked.name}-open"
    opened(asked, name)

    for one in (name, f"{asked.name}-none", ""):
        asked.each(one, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": (one,)})


def list_all(asked: Asked) -> None:
    made(asked.wire, asked.name)
    name = f"{asked.name}-open"
    opened(asked, name)

    def own(answer: Any) -> Any:
        kept = [one for one in answer.transaction_states if asked.name in one.transactional_id]
        return replace(answer, transaction_states=tuple(kept))

    for what, changes in (
        ("all", {}), ("a state", {"state_filters": ("Ongoing",)}),
        ("an unknown state", {"state_filters": ("nonsense",)}),
        ("by producer", {"producer_id_filters": (NOBODY,)}),
        ("by age", {"duration_filter": 10**9}),
        ("by pattern", {"transactional_id_pattern": f"{asked.name}.*"}),
        ("by another pattern", {"transactional_id_pattern": "none"}),
        ("by a bad pattern", {"transactional_id_pattern": "["}),
    ):  # fmt: skip
        values = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1,
                  "transactional_id_pattern": None}  # fmt: skip
        asked.each(what, ApiKey.LIST_TRANSACTIONS, values | changes, own)


SITUATIONS = {
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets,
    ApiKey.END_TXN: end,
    ApiKey.TXN_OFFSET_COMMIT: offset_commit,
    ApiKey.WRITE_TXN_MARKERS: write_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: describe,
    ApiKey.LIST_TRANSACTIONS: list_all,
}
