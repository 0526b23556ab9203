"""The answers of each API that refuse the whole of a request.

Each is the shape that Kafka's request classes give an error (`getErrorResponse`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.worker.request import Request

NO_ERROR: Mapping[str, Any] = {"error_code": Code.NONE, "error_message": None}
Refusal = Callable[[Request, Code], Mapping[str, Any]]
TEXTS = {
    Code.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    Code.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    Code.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


def said(code: Code, message: str | None = None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message or TEXTS[code]}


def error_fields(error: KafkaError) -> dict[str, Any]:
    """Return the two fields of an answer, or of a part of it, that say an error."""
    return {"error_code": error.code, "error_message": error.message}


def whole(*empty: str, message: bool = True) -> Refusal:
    """Return a code for the whole answer, whose lists are empty."""

    def refuse(request: Request, code: Code) -> Mapping[str, Any]:
        answer = said(code) if message else {"error_code": code}
        return answer | dict.fromkeys(empty, ())

    return refuse


def describe_log_dirs(request: Request, code: Code) -> Mapping[str, Any]:
    """Answer nothing, as Kafka does; say why from version 3 on."""
    return {"error_code": code, "results": ()}


def create_acls(request: Request, code: Code) -> Mapping[str, Any]:
    return {"results": [said(code) for _ in request.body.creations]}


def delete_acls(request: Request, code: Code) -> Mapping[str, Any]:
    return {"filter_results": [said(code) | {"matching_acls": ()} for _ in request.body.filters]}


def alter_users(request: Request, code: Code) -> Mapping[str, Any]:
    users = (one.name for one in (*request.body.deletions, *request.body.upsertions))
    return {"results": [said(code) | {"user": user} for user in dict.fromkeys(users)]}


def elect_leaders(request: Request, code: Code) -> Mapping[str, Any]:
    """Give each partition the code; the answer as a whole has it from version 1 on."""
    results = [
        {
            "topic": topic.topic,
            "partition_result": [{"partition_id": i, **said(code)} for i in topic.partitions],
        }
        for topic in request.body.topic_partitions or ()
    ]
    return {"error_code": code, "replica_election_results": results}


def reassign(request: Request, code: Code) -> Mapping[str, Any]:
    responses = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": part.partition_index, **said(code)} for part in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    return said(code) | {"responses": responses}


def write_markers(request: Request, code: Code) -> Mapping[str, Any]:
    markers = [
        {
            "producer_id": marker.producer_id,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": _coded(topic.partition_indexes, "partition_index", code),
                }
                for topic in marker.topics
            ],
        }
        for marker in request.body.markers
    ]
    return {"markers": markers}


def move_directories(request: Request, code: Code) -> Mapping[str, Any]:
    results: dict[str, list[dict[str, Any]]] = {}
    for directory in request.body.dirs:
        for topic in directory.topics:
            parts = _coded(topic.partitions, "partition_index", code)
            results.setdefault(topic.name, []).extend(parts)
    return {"results": [{"topic_name": n, "partitions": p} for n, p in results.items()]}


def describe_scram_users(request: Request, code: Code) -> Mapping[str, Any]:
    names = dict.fromkeys(one.name for one in request.body.users or ())
    users = [{"user": name, **said(code), "credential_infos": ()} for name in names]
    return said(code) | {"results": users}


def describe_quotas(request: Request, code: Code) -> Mapping[str, Any]:
    return said(code) | {"entries": None}


def alter_quotas(request: Request, code: Code) -> Mapping[str, Any]:
    entries = [
        said(code)
        | {
            "entity": [
                {"entity_type": one.entity_type, "entity_name": one.entity_name}
                for one in entry.entity
            ]
        }
        for entry in request.body.entries
    ]
    return {"entries": entries}


def _coded(indices: Iterable[int], label: str, code: Code) -> list[dict[str, Any]]:
    return [{label: index, "error_code": code} for index in indices]
