"""Features (KIP-584): what ApiVersions says of kproxy's level, and UpdateFeatures (key 57)."""

from collections.abc import Mapping
from typing import Any

from kproxy.errors import Code, KafkaError
from kproxy.metadata.levels import FEATURE, NEWEST, OLDEST
from kproxy.worker import Request, Worker

_UPGRADE = 1


def described(worker: Worker) -> Mapping[str, Any]:
    """The features part of an ApiVersionsResponse; the epoch rises with the level."""
    level = worker.level.value
    return {
        "supported_features": [{"name": FEATURE, "min_version": OLDEST, "max_version": NEWEST}],
        "finalized_features_epoch": level,
        "finalized_features": [
            {"name": FEATURE, "max_version_level": level, "min_version_level": level}
        ],
    }


async def update(worker: Worker, request: Request) -> Mapping[str, Any]:
    """An UpdateFeaturesResponse: all updates are carried out, or none. One feature can be named."""
    body = request.body
    names = [asked.feature for asked in body.feature_updates]
    code, message = _duplicate(names)
    if not code:
        for asked in body.feature_updates:
            code, message = await _fault(worker, request, asked)
            if code:
                break
        else:
            if names and not getattr(body, "validate_only", False):
                code, message = await _finalized(worker, body.feature_updates[0].max_version_level)
    results = [{"feature": name, "error_code": code, "error_message": message} for name in names]
    return {"error_code": code, "error_message": message, "results": results}


def _duplicate(names: list[str]) -> tuple[Code, str | None]:
    if len(set(names)) < len(names):
        return Code.INVALID_REQUEST, "a feature is named twice"
    return Code.NONE, None


def _upgrade_type(request: Request, asked: Any) -> int:
    if request.version == 0:
        return 2 if asked.allow_downgrade else _UPGRADE
    return int(asked.upgrade_type)


async def _fault(worker: Worker, request: Request, asked: Any) -> tuple[Code, str | None]:
    """Why a feature cannot have the level asked for, as Kafka's controller says it."""
    level = asked.max_version_level
    what = f"invalid update version {level} for feature {asked.feature}"
    if asked.feature != FEATURE:
        return Code.INVALID_UPDATE_VERSION, f"{what}: kproxy does not have this feature"
    if level < worker.level.value:
        return Code.INVALID_UPDATE_VERSION, f"{what}: a level is one-way"
    if _upgrade_type(request, asked) != _UPGRADE:
        return Code.INVALID_UPDATE_VERSION, f"{what}: it is an upgrade"
    if level > NEWEST:
        return Code.INVALID_UPDATE_VERSION, f"{what}: this kproxy knows levels up to {NEWEST}"
    if level == worker.level.value:
        return Code.NONE, None
    try:
        behind = await worker.upgrades.behind()
    except KafkaError as error:
        return error.code, error.message
    if behind:
        return Code.INVALID_UPDATE_VERSION, f"{what}: not known to {', '.join(behind)}"
    return Code.NONE, None


async def _finalized(worker: Worker, level: int) -> tuple[Code, str | None]:
    if level == worker.level.value:
        return Code.NONE, None
    try:
        await worker.upgrades.finalize()
    except KafkaError as error:
        return error.code, error.message
    return Code.NONE, None
