"""DescribeConfigs (key 32), versions 1 to 4: of queues, and of this worker as a broker.

A broker's configs are those that tools and Connect look at, under Kafka's names, read-only.
"""

from collections.abc import Mapping
from typing import Any

from kproxy.errors import Code
from kproxy.metadata import queue_settings
from kproxy.metadata.catalogue import absent
from kproxy.metadata.queue_settings import BOOLEAN, BROKER, INT, LONG, STRING, TOPIC
from kproxy.worker.worker import Request, Worker

_RESULT_BYTES, _ENTRY_BYTES = 600, 1000  # about what they take until they are encoded
_SOURCE_TOPIC, _SOURCE_STATIC_BROKER, _SOURCE_DEFAULT = 1, 4, 5


async def handle(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DescribeConfigsResponse."""
    results = []
    for resource in request.body.resources:
        result = _resource(worker, request.body, resource)
        results.append(result)
        await request.budget.step(_RESULT_BYTES + len(result["configs"]) * _ENTRY_BYTES)
    return {"results": results}


def _resource(worker: Worker, body: Any, resource: Any) -> dict[str, Any]:
    result: dict[str, Any] = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": (),
    }
    if resource.resource_type == TOPIC:
        queue = worker.catalogue.find(resource.resource_name)
        if queue is None:
            code, fault = absent(resource.resource_name)
            return result | {"error_code": code, "error_message": fault}
        entries = [
            _entry(
                body,
                setting.name,
                worker.setting(queue, setting.name),
                setting.kind,
                source=_SOURCE_TOPIC if setting.name in queue.configs else _SOURCE_DEFAULT,
                default=setting.default,
                documentation=setting.documentation,
            )
            for setting in queue_settings.SETTINGS.values()
        ]
    elif resource.resource_type == BROKER:
        if resource.resource_name not in ("", str(worker.cluster.me.node_id)):
            message = f"this is broker {worker.cluster.me.node_id}"
            return result | {"error_code": Code.INVALID_REQUEST, "error_message": message}
        entries = [
            _entry(
                body, name, value, kind, source=_SOURCE_STATIC_BROKER, default=value,
                documentation="", read_only=True,
            )
            for name, value, kind in _broker(worker)
        ]  # fmt: skip
    else:
        message = "only topics and brokers have configs here"
        return result | {"error_code": Code.INVALID_REQUEST, "error_message": message}
    wanted = resource.configuration_keys
    names = None if wanted is None else set(wanted)
    kept = [entry for entry in entries if names is None or entry["name"] in names]
    return result | {"configs": kept}


def _broker(worker: Worker) -> list[tuple[str, str, int]]:
    config = worker.config
    return [
        ("auto.create.topics.enable", str(config.auto_create).lower(), BOOLEAN),
        ("compression.type", "producer", STRING),
        ("connections.max.idle.ms", str(config.connection_idle_ms_max), LONG),
        ("default.replication.factor", "1", INT),
        ("delete.topic.enable", "true", BOOLEAN),
        ("fetch.max.bytes", str(int(config.fetch_bytes_max)), INT),
        ("listeners", f"PLAINTEXT://{config.listen}", STRING),
        ("log.cleanup.policy", "delete", STRING),
        ("log.message.timestamp.type", "CreateTime", STRING),
        ("message.max.bytes", str(int(config.batch_bytes_max)), INT),
        ("min.insync.replicas", "1", INT),
        ("node.id", str(worker.cluster.me.node_id), INT),
        ("num.partitions", str(config.partitions_default), INT),
        ("offset.metadata.max.bytes", str(config.offset_metadata_bytes_max), INT),
        ("socket.request.max.bytes", str(int(config.frame_bytes_max)), INT),
    ]


def _entry(
    body: Any,
    name: str,
    value: str,
    kind: int,
    *,
    source: int,
    default: str,
    documentation: str,
    read_only: bool = False,
) -> dict[str, Any]:
    synonyms = []
    if body.include_synonyms:
        synonyms = [{"name": name, "value": value, "source": source}]
        if source == _SOURCE_TOPIC:
            synonyms.append({"name": name, "value": default, "source": _SOURCE_DEFAULT})
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": kind,
        "documentation": documentation if getattr(body, "include_documentation", False) else None,
    }
