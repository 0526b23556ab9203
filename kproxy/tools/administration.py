"""Queues that a client makes, and settings that it changes, some hundreds in a request."""

import time
from collections.abc import Iterator, Mapping, Sequence

from kproxy.common.errors import Code
from kproxy.tools.changes import Outcome
from kproxy.tools.client import Client, chunks

_SET, _UNSET = 0, 1
_BATCH = 500
_TIMEOUT_MS = 25_000
"""A time shorter than the client waits for an answer."""
_TRIES, _WAIT_S_MAX = 20, 5.0


def create(
    client: Client, names: Sequence[str], partitions: int, settings: Mapping[str, str], *, dry: bool
) -> Iterator[Outcome]:
    """Make queues. Yields the outcome of each, once no quota holds it up."""
    configs = [{"name": name, "value": value} for name, value in settings.items()]
    for some in chunks(names, _BATCH):
        left = list(some)
        for tries_left in reversed(range(_TRIES)):
            topics = [
                {
                    "name": name, "num_partitions": partitions, "replication_factor": -1,
                    "assignments": (), "configs": configs,
                }
                for name in left
            ]  # fmt: skip
            values = {"topics": topics, "timeout": _TIMEOUT_MS, "validate_only": dry}
            answer = client.call(19, 6, values)
            left = []
            for one in answer.topics:
                if one.error_code == Code.THROTTLING_QUOTA_EXCEEDED and tries_left:
                    left.append(one.name)
                else:
                    yield Outcome(one.name, int(one.error_code), one.error_message)
            if not left:
                break
            time.sleep(min(_WAIT_S_MAX, _seconds(answer.throttle_time)))


def _seconds(throttle: object) -> float:
    """Return how long an answer asks its client to wait."""
    total = getattr(throttle, "total_seconds", None)
    return float(total()) if total is not None else float(str(throttle)) / 1000


def alter(
    client: Client, kind: int, names: Sequence[str], changes: Mapping[str, str | None], *, dry: bool
) -> Iterator[Outcome]:
    """Change settings of queues or groups; None unsets one. Yields the outcome of each."""
    configs = [
        {"name": name, "config_operation": _UNSET if value is None else _SET, "value": value}
        for name, value in changes.items()
    ]
    for some in chunks(names, _BATCH):
        resources = [
            {"resource_type": kind, "resource_name": name, "configs": configs} for name in some
        ]
        answer = client.call(44, 1, {"resources": resources, "validate_only": dry})
        for one in answer.responses:
            yield Outcome(one.resource_name, int(one.error_code), one.error_message)
