"""Bodies of requests. In the names of settings that are keywords, "_" stands for "."."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

Settings = Mapping[str, str | None]
NO_ID = UUID(int=0)


def _named(settings: Settings) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in settings.items()]


def creation(
    *names: str, partitions: int = 1, configs: Settings | None = None, dry: bool = False
) -> dict[str, Any]:
    """Return a CreateTopics."""
    topics = [
        {
            "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (),
            "configs": _named(configs or {}),
        }
        for name in names
    ]  # fmt: skip
    asked = {"topics": topics, "timeout": 5000}
    return asked | {"validate_only": True} if dry else asked  # as recordings have it


def growth(*names: str, count: int, dry: bool = False) -> dict[str, Any]:
    """Return a CreatePartitions."""
    topics = [{"name": name, "count": count, "assignments": None} for name in names]
    return {"topics": topics, "timeout": 5000, "validate_only": dry}


def metadata(topics: Any, *, create: bool = True, rights: bool = False) -> dict[str, Any]:
    """Return a Metadata for queues: by name, by id, or for all, which is None."""
    if topics is not None:
        topics = [
            {"name": None, "topic_id": one} if isinstance(one, UUID)
            else {"name": one, "topic_id": NO_ID}
            for one in topics
        ]  # fmt: skip
    return {
        "topics": topics, "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": rights,
    }  # fmt: skip


def replacement(kind: int, name: str, settings: Settings, *, dry: bool = False) -> dict[str, Any]:
    """Return an AlterConfigs."""
    resource = {"resource_type": kind, "resource_name": name, "configs": _named(settings)}
    return {"resources": [resource], "validate_only": dry}


def change(
    kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False
) -> dict[str, Any]:
    """Return an IncrementalAlterConfigs; a change is (name, operation, value)."""
    configs = [{"name": n, "config_operation": o, "value": v} for n, o, v in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return {"resources": [resource], "validate_only": dry}


def change_to(kind: int, name: str, settings: Settings) -> dict[str, Any]:
    """Return an IncrementalAlterConfigs that sets each to its value, or deletes it: None."""
    changes = [(n.replace("_", "."), int(v is None), v) for n, v in settings.items()]
    return change(kind, name, *changes)


def commit(
    group: str, queue: str, offset: int, *, member: str = "", epoch: int = -1, text: str = ""
) -> dict[str, Any]:
    """Return an OffsetCommit for the first partition of a queue."""
    part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
            "committed_metadata": text}  # fmt: skip
    return {
        "group_id": group, "generation_id_or_member_epoch": epoch, "member_id": member,
        "group_instance_id": None, "topics": [{"name": queue, "partitions": [part]}],
    }  # fmt: skip
