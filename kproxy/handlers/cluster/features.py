"""Features (KIP-584): kproxy's level in ApiVersions, and UpdateFeatures (57)."""

from collections.abc import Mapping, Sequence
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import ClusterNeeds
from kproxy.virtual.levels import (
    FEATURE,
    NEWEST,
    OLDEST,
    SHARES_FROM,
    STREAMS_FROM,
    TRANSACTIONS_FROM,
)
from kproxy.worker.request import Request

_OF_KAFKA = (
    ("transaction.version", 2, TRANSACTIONS_FROM),  # KIP-890: clients then enlist by writing
    ("share.version", 2, SHARES_FROM),  # KIP-932, and KIP-1191: dead letters
    ("streams.version", 1, STREAMS_FROM),  # KIP-1071
)
"""Kafka's features: name, the only version that is ever in force, the level that brings it."""
_LOWEST_LEVEL_MAY_BE_0 = 4
"""The ApiVersions version from which a feature with a lowest level of 0 may be announced.

Java clients 3.3 to 3.7 refuse the whole answer over one (KIP-1022, KAFKA-17492).
"""
_UPGRADE = 1
_WITHOUT_RESULTS = 2
"""The UpdateFeatures version from which features have no results; on failure none has them."""
_FOR_ALL = "The update failed for all features since the following feature had an error: "
_RESULT_BYTES = 400  # made of a dict, about


def described(worker: ClusterNeeds, version_asked: int) -> Mapping[str, Any]:
    """Return the features part of an ApiVersionsResponse; the epoch rises with the level."""
    level = worker.level.value
    supported = [{"name": FEATURE, "min_version": OLDEST, "max_version": NEWEST}]
    finalized = [{"name": FEATURE, "max_version_level": level, "min_version_level": level}]
    for name, version, since in _OF_KAFKA:
        if version_asked >= _LOWEST_LEVEL_MAY_BE_0:
            supported.append({"name": name, "min_version": 0, "max_version": version})
        if worker.level.reaches(since):
            finalized.append(
                {"name": name, "max_version_level": version, "min_version_level": version}
            )
    return {
        "supported_features": supported,
        "finalized_features_epoch": level,
        "finalized_features": finalized,
    }


async def update(worker: ClusterNeeds, request: Request) -> Mapping[str, Any]:
    """Return an UpdateFeaturesResponse: all updates are carried out, or none."""
    updates = request.body.feature_updates
    code, message = Code.NONE, None
    try:
        await _check(worker, request, updates)
        for asked in updates:
            if asked.feature == FEATURE and not getattr(request.body, "validate_only", False):
                await _finalize(worker, asked.max_version_level)
    except KafkaError as error:
        code, message = error.code, f"{_FOR_ALL}{error.message}"
    results: list[dict[str, Any]] = []
    if not code and request.version < _WITHOUT_RESULTS:
        for asked in updates:
            results.append({"feature": asked.feature, "error_code": code, "error_message": "NONE"})
            await request.budget.step(_RESULT_BYTES)
    return {"error_code": code, "error_message": message, "results": results}


async def _check(worker: ClusterNeeds, request: Request, updates: Sequence[Any]) -> None:
    """Raise KafkaError: why one of them cannot be, as Kafka's controller says it."""
    times = await request.budget.count(asked.feature for asked in updates)
    if len(times) < len(updates):
        raise KafkaError(Code.INVALID_REQUEST, "a feature is named twice")
    for asked in updates:
        level = asked.max_version_level
        fault = _fault(worker, request.version, asked)
        behind = await _behind(worker, asked) if fault is None else []
        if behind:
            fault = f"not known to {', '.join(behind)}"
        if fault is not None:
            raise KafkaError(
                Code.INVALID_UPDATE_VERSION,
                f"invalid update version {level} for feature {asked.feature}: {fault}",
            )


def _fault(worker: ClusterNeeds, version: int, asked: Any) -> str | None:
    level = asked.max_version_level
    for name, brought, since in _OF_KAFKA:
        if asked.feature == name:
            there = worker.level.reaches(since) and level == brought
            return None if there else f"it comes with {FEATURE}={since}"
    if asked.feature != FEATURE:
        return "kproxy does not have this feature"
    if level < worker.level.value:
        return "a level is one-way"
    if not _is_upgrade(version, asked):
        return "it is an upgrade"
    if level > NEWEST:
        return f"this kproxy knows levels up to {NEWEST}"
    return None


def _is_upgrade(version: int, asked: Any) -> bool:
    return not asked.allow_downgrade if version == 0 else asked.upgrade_type == _UPGRADE


async def _behind(worker: ClusterNeeds, asked: Any) -> list[str]:
    level = asked.max_version_level
    if asked.feature != FEATURE or level == worker.level.value:
        return []
    return await worker.upgrades.behind(level)


async def _finalize(worker: ClusterNeeds, level: int) -> None:
    if level != worker.level.value:
        await worker.upgrades.finalize(level)
