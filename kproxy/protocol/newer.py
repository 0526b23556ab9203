"""The messages of Kafka 4.4 that kio does not have yet, as dataclasses in kio's form.

Each is derived from kio's class of the version before: its fields stay, some are new, some go.
The entry of a version that kio has by now can be removed: kio's own holds. `CORRECTED` has answers
that kio's own classes cannot read.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache
from types import GenericAlias
from typing import Any, NamedTuple, get_args
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import TZAware, i8, i32, i32Timedelta, i64

from kproxy.protocol.api_keys import ApiKey

Schema = Any
"""A dataclass that kio reads and writes."""


class New(NamedTuple):
    """A field that a version has and the one before has not."""

    name: str
    type: Any
    kafka_type: str | None = None
    default: Any = MISSING
    before: str = ""
    """The field before which it stands; empty: it is the last one."""

    def made(self) -> tuple[str, Any, Any]:
        metadata = None if self.kafka_type is None else {"kafka_type": self.kafka_type}
        return self.name, self.type, field(metadata=metadata, default=self.default)


def _kept(one: Field[Any]) -> tuple[str, Any, Any]:
    return one.name, one.type, field(metadata=one.metadata, default=one.default)


def _next(base: Schema, *added: New, without: tuple[str, ...] = ()) -> Schema:
    """Return a class as it is in the version after its own."""
    found = []
    for one in fields(base):
        found += [new.made() for new in added if new.before == one.name]
        if one.name not in without:
            found.append(_kept(one))
    found += [new.made() for new in added if not new.before]
    return _class(base.__name__, found, base, version=base.__version__ + 1)


def _class(name: str, found: list[Any], like: Schema, **other: Any) -> Schema:
    """Return a class with these fields, and otherwise as another one."""
    names = ("type", "version", "flexible", "api_key", "header_schema")
    said = {f"__{one}__": other.get(one, getattr(like, f"__{one}__")) for one in names}
    return make_dataclass(name, found, namespace=said, frozen=True, slots=True, kw_only=True)


def _element(schema: Schema, name: str) -> Schema:
    """Return the class of an array's elements."""
    (found,) = (one.type for one in fields(schema) if one.name == name)
    return get_args(found)[0]


def _array(element: Schema) -> Any:
    return GenericAlias(tuple, (element, ...))


def _with(schema: Schema, name: str, element: Schema) -> Schema:
    """Return the class as it is in the next version, with an array of other elements."""
    names = [one.name for one in fields(schema)]
    behind = names[names.index(name) + 1 :]
    array = New(name, _array(element), before=behind[0] if behind else "")
    return _next(schema, array, without=(name,))


def _read_as(schema: Schema, name: str, kind: Any) -> Schema:
    """Return the class of the same version with a field of another type."""
    found = [(one.name, kind if one.name == name else one.type, _kept(one)[2])
             for one in fields(schema)]  # fmt: skip
    return _class(schema.__name__, found, schema)


# -- the messages


def _api_versions_request() -> Schema:
    base = load_request_schema(ApiKey.API_VERSIONS, 4)
    cluster = New("cluster_id", str | None, "string", None)
    return _next(base, cluster, New("node_id", i32, "int32", i32(-1)))


def _api_versions_response() -> Schema:
    return _next(load_response_schema(ApiKey.API_VERSIONS, 4))


def _by_topic_id(schema: Schema) -> Schema:
    topic = _element(schema, "topics")
    by_id = New("topic_id", UUID | None, "uuid", before="name")
    return _with(schema, "topics", _next(topic, by_id, without=("name",)))


def _offsets_request() -> Schema:
    return _by_topic_id(load_request_schema(ApiKey.TXN_OFFSET_COMMIT, 5))


def _offsets_response() -> Schema:
    return _by_topic_id(load_response_schema(ApiKey.TXN_OFFSET_COMMIT, 5))


def _delete_groups_request() -> Schema:
    return _next(load_request_schema(ApiKey.DELETE_GROUPS, 2))


def _delete_groups_response() -> Schema:
    base = load_response_schema(ApiKey.DELETE_GROUPS, 2)
    message = New("error_message", str | None, "string", None)
    return _with(base, "results", _next(_element(base, "results"), message))


def _streams_heartbeat_request() -> Schema:
    return _next(load_request_schema(ApiKey.STREAMS_GROUP_HEARTBEAT, 0))


def _streams_heartbeat_response() -> Schema:
    base = load_response_schema(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)
    return _next(
        base,
        New("acceptable_recovery_lag", i64, "int64", i64(-1), before="status"),
        New("topology_description_required", bool, "bool", False,
            before="endpoint_information_epoch"),
        without=("acceptable_recovery_lag",),
    )  # fmt: skip


def _streams_describe_request() -> Schema:
    base = load_request_schema(ApiKey.STREAMS_GROUP_DESCRIBE, 0)
    return _next(base, New("include_topology_description", bool, "bool", False))


def _streams_describe_response() -> Schema:
    base = load_response_schema(ApiKey.STREAMS_GROUP_DESCRIBE, 0)
    group = _element(base, "groups")
    described = _next(
        group,
        New("topology_description", _description(group, 1) | None, None, None),
        New("topology_description_status", i8, "int8", i8(0)),
        New("assignor_name", str | None, "string", None),
    )
    return _with(base, "groups", described)


def _description(like: Schema, version: int) -> Schema:
    """Return the class of a topology's description (KIP-1331)."""

    def part(name: str, *new: New) -> Any:
        made = [one.made() for one in new]
        return _class(name, made, like, version=version, type=EntityType.nested)

    names = tuple[str, ...]
    node = part(
        "TopologyDescriptionNode",
        New("name", str, "string"), New("node_type", i8, "int8"),
        New("source_topics", names, "string", ()), New("sink_topic", str | None, "string", None),
        New("stores", names, "string", ()), New("successors", names, "string", ()),
    )  # fmt: skip
    subtopology = part(
        "TopologyDescriptionSubtopology",
        New("subtopology_id", str, "string"), New("nodes", _array(node)),
    )  # fmt: skip
    store = part("TopologyDescriptionGlobalStore", New("source", node), New("processor", node))
    return part(
        "TopologyDescription",
        New("subtopologies", _array(subtopology)), New("global_stores", _array(store)),
    )  # fmt: skip


def _description_request() -> Schema:
    like = load_request_schema(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)
    found = [
        New("group_id", str, "string"), New("member_id", str, "string"),
        New("topology_epoch", i32, "int32"),
        New("topology_description", _description(like, 0)),
    ]  # fmt: skip
    return _class("StreamsGroupTopologyDescriptionUpdateRequest", [one.made() for one in found],
                  like, api_key=int(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE))  # fmt: skip


def _description_response() -> Schema:
    like = load_response_schema(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)
    found = [
        New("throttle_time", i32Timedelta, "timedelta_i32"),
        New("error_code", ErrorCode, "error_code"),
        New("error_message", str | None, "string", None),
    ]
    return _class("StreamsGroupTopologyDescriptionUpdateResponse", [one.made() for one in found],
                  like, api_key=int(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE))  # fmt: skip


REQUESTS: Mapping[tuple[int, int], Callable[[], Schema]] = {
    (ApiKey.API_VERSIONS, 5): _api_versions_request,
    (ApiKey.TXN_OFFSET_COMMIT, 6): _offsets_request,
    (ApiKey.DELETE_GROUPS, 3): _delete_groups_request,
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 1): _streams_heartbeat_request,
    (ApiKey.STREAMS_GROUP_DESCRIBE, 1): _streams_describe_request,
    (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0): _description_request,
}
"""The requests by API and version."""
RESPONSES: Mapping[tuple[int, int], Callable[[], Schema]] = {
    (ApiKey.API_VERSIONS, 5): _api_versions_response,
    (ApiKey.TXN_OFFSET_COMMIT, 6): _offsets_response,
    (ApiKey.DELETE_GROUPS, 3): _delete_groups_response,
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 1): _streams_heartbeat_response,
    (ApiKey.STREAMS_GROUP_DESCRIBE, 1): _streams_describe_response,
    (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0): _description_response,
}
"""The responses likewise."""


def _transactions_response() -> Schema:
    """Return the answer with no start where a transactional id has no transaction: Kafka's -1."""
    base, states = load_response_schema(ApiKey.DESCRIBE_TRANSACTIONS, 0), "transaction_states"
    state = _read_as(_element(base, states), "transaction_start_time", TZAware | None)
    return _read_as(base, states, _array(state))


CORRECTED: Mapping[tuple[int, int], Callable[[], Schema]] = {
    (ApiKey.DESCRIBE_TRANSACTIONS, 0): cache(_transactions_response),
}
"""The responses that are read by another class than kio's."""
