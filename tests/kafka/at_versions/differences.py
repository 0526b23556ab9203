"""The differences from Kafka that stay at some version, each with its reason.

The reasons stand in docs/kafka-differences.md, "Answers at each version".
"""

from typing import Any, NamedTuple


class Difference(NamedTuple):
    """Fields of an answer, by the beginning of their paths, and why they stay as they are."""

    situation: str
    paths: tuple[str, ...]
    reason: str


_TOKENS = "Where delegation tokens are refused, the rest of the answer is empty."
_HEADER_ALONE = (
    "A refused batch's answer names no record and no log start: kproxy looks at the header alone."
)

DIFFERENCES = (
    Difference(
        "api_versions: known", ("supported_features", "finalized_features"),
        "The feature share.version is 2, as in Kafka 4.4.",
    ),
    Difference(
        "api_versions", ("api_keys[2].max_version",),
        "kproxy speaks ApiVersions 5, as Kafka 4.4 does.",
    ),
    Difference(
        "add_partitions_to_txn", ("error_code", "results_by_transaction"),
        "AddPartitionsToTxn 4 and 5 are for brokers: kproxy answers CLUSTER_AUTHORIZATION_FAILED.",
    ),
    Difference("create_delegation_token", ("",), _TOKENS),
    Difference("renew_delegation_token", ("",), _TOKENS),
    Difference("expire_delegation_token", ("",), _TOKENS),
    Difference(
        "create_topics: dry", ("topics.topic_id",),
        "A queue that is only validated has no id; Kafka makes one up.",
    ),
    Difference(
        "create_topics: with Kafka's defaults", ("topics.topic_id",),
        "A queue that is only validated has no id; Kafka makes one up.",
    ),
    Difference(
        "describe_configs: a group", ("results.configs",),
        "The settings of groups that came with Kafka 4.4 are there too.",
    ),
    Difference(
        "describe_configs: client metrics", ("results.configs",),
        "Settings of client metrics are read-only defaults: kproxy takes no metrics of clients.",
    ),
    Difference(
        "fetch: a fetched epoch of the future", ("responses",),
        "LastFetchedEpoch of a Fetch is not looked at: no queue ever diverges, and only brokers "
        "send it.",
    ),
    Difference(
        "list_offsets: an isolation level that is none", ("topics",),
        "An isolation level that does not exist is read_uncommitted; Kafka answers "
        "UNKNOWN_SERVER_ERROR.",
    ),
    Difference(
        "metadata: by id where none can be", ("controller_id", "cluster_id", "brokers", "topics"),
        "Metadata 10 and 11 may ask by topic id; Kafka does so from 12 on.",
    ),
    Difference("produce: a wrong count", ("responses",), _HEADER_ALONE),
    Difference("produce: a time too late", ("responses",), _HEADER_ALONE),
    Difference(
        "produce: an unknown id", ("responses",),
        "Once a partition takes part in a transaction, only its own transactional id may write "
        "to it.",
    ),
)  # fmt: skip


def without(said: list[Any], other: list[Any]) -> tuple[list[Any], list[Any], set[Difference]]:
    """Return both without the fields that are known to differ, and what did differ."""
    kept: tuple[list[Any], list[Any]] = ([], [])
    found = set()
    for one, two in zip(said, other, strict=True):
        if isinstance(one, str):
            kept[0].append(one), kept[1].append(two)
            continue
        ((situation, mine),), ((same, theirs),) = one.items(), two.items()
        assert situation == same
        left = []
        for difference in DIFFERENCES:
            if not situation.startswith(difference.situation):
                continue
            left += [p for p in {*mine, *theirs} if p.startswith(difference.paths)]
            if any(mine.get(path) != theirs.get(path) for path in left):
                found.add(difference)
        kept[0].append({situation: {p: v for p, v in mine.items() if p not in left}})
        kept[1].append({situation: {p: v for p, v in theirs.items() if p not in left}})
    return *kept, found
