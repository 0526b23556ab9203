"""Requests and responses: the header by hand, the body with kio, one set of names for all versions.

A handler answers with plain dicts that have the fields of every version. `encode` takes the fields
of the requested version. So no class of one API version reaches a handler.
"""

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.element_reader import sliced_reader
from kproxy.protocol.frames import Frame
from kproxy.protocol.guard import Admitted, admit, skip_tags, tag_value
from kproxy.protocol.name_search import TAG
from kproxy.protocol.newer import CORRECTED, REQUESTS, RESPONSES
from kproxy.protocol.varint import Malformed, uvarint
from kproxy.protocol.written_once import LINES, created_topics_body, with_lines, without_lines

ZERO_UUID = UUID(int=0)
_HEADER = struct.Struct(">hhih")
_BODY_BYTES_MAX = 2**31 - 1 - 5
_HEADER_TAGS_MAX = 1000  # Kafka has defined none yet
_LENGTH_AND_CORRELATION = struct.Struct(">ii")


class RequestHeader(NamedTuple):
    """`body_at` is the byte position of the body.

    -1: nobody knows the version; NOT_LOADED: its schemas are to be loaded first. `search`: the
    value of kproxy's own tagged field (`name_search`), empty where there is none.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    search: bytes = b""


def decode_header(frame: Frame, *, loads: bool = True) -> RequestHeader:
    """Read a request header, version 1 or 2 as the API and version say. Raise Malformed.

    `loads`: where the schemas of its API version are not loaded, that is done now: for some ten
    milliseconds.
    """
    if len(frame) < _HEADER.size:
        raise Malformed("the request ends inside its header")
    key, version, correlation_id, length = _HEADER.unpack_from(frame)
    position = _HEADER.size
    client_id = None
    if length >= 0:
        if length > len(frame) - position:
            raise Malformed("the client id is longer than the request")
        try:
            client_id = frame[position : position + length].decode()
        except UnicodeDecodeError as error:
            raise Malformed("the client id is not UTF-8") from error
        position += length
    elif length != -1:
        raise Malformed(f"the client id has length {length}")
    flexible = _flexible.get((key, version))
    if flexible is None and loads:
        flexible = load(key, version)
    if flexible is None:
        position = -1 if loads else NOT_LOADED
    elif flexible:
        tags_at = position
        position, _ = skip_tags(frame, position, len(frame), _HEADER_TAGS_MAX)
        if position - tags_at > 1:
            own = tag_value(frame, tags_at, TAG)
            return RequestHeader(key, version, correlation_id, client_id, position, own)
    return RequestHeader(key, version, correlation_id, client_id, position)


@cache
def _loaded(load: Callable[[int, int], Any], key: int, version: int) -> Any:
    try:
        return load(key, version)
    except (UnknownAPIKey, UnknownEntity):
        newer = (REQUESTS if load is load_request_schema else RESPONSES).get((key, version))
        return None if newer is None else newer()


_flexible: dict[tuple[int, int], bool] = {}
"""Whether requests of an API version are flexible, of those that are loaded."""
NOT_LOADED = -2


def load(key: int, version: int) -> bool | None:
    """Import the schemas of an API version. None: kio knows no such version; else `_flexible`."""
    schema = request_schema(key, version)
    if schema is None:
        return None
    _reader(schema)
    if _loaded(load_response_schema, key, version) is not None:
        _builder(_loaded(load_response_schema, key, version))
    _flexible[key, version] = flexible = bool(schema.__flexible__)
    return flexible


def request_schema(key: int, version: int) -> Any:
    """Return kio's class for a request body, or None if kio knows no such version."""
    if not (0 <= key < 128 and 0 <= version < 64):
        return None
    return _loaded(load_request_schema, key, version)


ELEMENTS_MAX = 1_000_000


def decode_body(frame: bytes, header: RequestHeader, elements_max: int = ELEMENTS_MAX) -> Any:
    """Read a request body into kio's value for that version. Raise Malformed."""
    return decode_admitted(header, admit_body(frame, header, elements_max))


def admit_body(frame: bytes, header: RequestHeader, elements_max: int) -> Admitted:
    """Walk over a request body before it is decoded. Raise Malformed."""
    schema = request_schema(header.api_key, header.api_version)
    return admit(schema, frame, header.body_at, elements_max)


def decode_admitted(header: RequestHeader, admitted: Admitted, sliced: bool = False) -> Any:
    """Read a body that was walked over, in slices where it is large. Raise Malformed."""
    schema = request_schema(header.api_key, header.api_version)
    reader = sliced_reader(schema) if sliced else _reader(schema)
    try:
        body, size = reader(admitted.data, admitted.position)
    except (SerialError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise Malformed(f"the request body does not decode: {error}") from error
    if admitted.position + size != admitted.end:
        raise Malformed(f"{size} bytes decode of {admitted.end - admitted.position}")
    return body


@cache
def _reader(schema: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    return entity_reader(schema)


def response_prefix(key: int, version: int, correlation_id: int, body_bytes: int) -> bytes:
    """Frame length and response header for a body of `body_bytes`. Raise Malformed."""
    if body_bytes > _BODY_BYTES_MAX:
        raise Malformed(f"an answer of {body_bytes} bytes is larger than a frame can be")
    tags = b"\0" if _response_header_is_flexible(key, version) else b""
    return _LENGTH_AND_CORRELATION.pack(4 + len(tags) + body_bytes, correlation_id) + tags


@cache
def _response_header_is_flexible(key: int, version: int) -> bool:
    if key == ApiKey.API_VERSIONS:
        return False  # always header 0, so that a client can read it whatever it asked (KIP-511)
    schema = _loaded(load_response_schema, key, version)
    return bool(schema is not None and schema.__flexible__)


@cache
def throttle_at(key: int, version: int) -> int | None:
    """Return where a response frame has its throttle time, in milliseconds: 4 bytes.

    From the frame's end where that is negative; None where it has none, or a moving one.
    """
    schema = _loaded(load_response_schema, key, version)
    if schema is None:
        return None
    names = [field.name for field in fields(schema)]
    if key == ApiKey.PRODUCE:
        return -5 if schema.__flexible__ else -4
    body_at = _LENGTH_AND_CORRELATION.size + _response_header_is_flexible(key, version)
    if names[:1] == ["throttle_time"]:
        return body_at
    return body_at + 2 if names[:2] == ["error_code", "throttle_time"] else None


def encode(key: int, version: int, correlation_id: int, values: Mapping[str, Any]) -> bytes:
    """Return a whole response frame from a dict of field names, superset of what `version` has."""
    body = encode_body(key, version, values)
    return response_prefix(key, version, correlation_id, len(body)) + body


def encode_body(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Return a response body alone."""
    if by_hand := _BY_HAND.get(key):
        return by_hand(version, values)
    return encode_with_kio(key, version, values)


def encode_with_kio(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    schema = _loaded(load_response_schema, key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, _builder(schema)(values))
    return buffer.getvalue()


def _streams_heartbeat_body(version: int, values: Mapping[str, Any]) -> bytes:
    """Return a StreamsGroupHeartbeatResponse body. Its lines: `EndpointLines`, or None."""
    key = ApiKey.STREAMS_GROUP_HEARTBEAT
    return with_lines(encode_with_kio(key, version, without_lines(values)), values.get(LINES))


_BY_HAND = {
    int(ApiKey.CREATE_TOPICS): created_topics_body,
    int(ApiKey.STREAMS_GROUP_HEARTBEAT): _streams_heartbeat_body,
}


def encode_request(
    key: int, version: int, correlation_id: int, values: Mapping[str, Any], search: bytes = b""
) -> bytes:
    """Return a whole request frame, for clients of ours; `search`: what kproxy's own field says."""
    schema = _loaded(load_request_schema, key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, _builder(schema)(values))
    client_id = b"kproxy"
    header = struct.pack(">hhih", key, version, correlation_id, len(client_id)) + client_id
    tags = b"\0" if schema.__flexible__ else b""
    if search:
        tags = b"\1" + uvarint(TAG) + uvarint(len(search)) + search
    payload = header + tags + buffer.getvalue()
    return len(payload).to_bytes(4, "big") + payload


def decode_response(key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """Read a response frame (without its length) into (correlation id, kio's value)."""
    corrected = CORRECTED.get((key, version))
    schema = corrected() if corrected else _loaded(load_response_schema, key, version)
    position = 5 if _response_header_is_flexible(key, version) else 4
    return int.from_bytes(frame[:4], "big"), _reader(schema)(frame, position)[0]


@cache
def _builder(schema: Any) -> Callable[[Mapping[str, Any]], Any]:
    converters = [(field.name, _converter(field), _default(field)) for field in fields(schema)]

    def build(values: Mapping[str, Any]) -> Any:
        arguments = {}
        for name, convert, default in converters:
            if name in values:
                arguments[name] = convert(values[name])
            elif default is not MISSING:
                arguments[name] = default
            else:
                raise AssertionError(f"{schema.__name__} v{schema.__version__} needs {name}")
        return schema(**arguments)

    return build


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.name == "throttle_time":
        return timedelta(0)
    return MISSING


def _converter(field: Field[Any]) -> Callable[[Any], Any]:
    nested, array, optional = _shape(field.type)
    kind = field.metadata.get("kafka_type")
    one: Callable[[Any], Any]
    if nested is not None:
        one = _builder(nested)
    elif kind == "error_code":
        one = ErrorCode
    elif kind in ("timedelta_i32", "timedelta_i64"):
        one = _milliseconds
    else:
        one = _same
    if array:
        convert_one = one

        def convert_all(items: Any) -> Any:
            return None if items is None else tuple(convert_one(item) for item in items)

        return convert_all
    if optional:
        return lambda value: None if value is None else one(value)
    return one


def _shape(annotation: Any) -> tuple[Any, bool, bool]:
    """Return (nested schema or None, whether an array, whether nullable) of an annotation."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    optional = NoneType in parts
    kept = next(part for part in parts if part is not NoneType)
    if get_origin(kept) is tuple:
        nested, _, _ = _shape(get_args(kept)[0])
        return nested, True, optional
    return (kept if is_dataclass(kept) else None), False, optional


def _same(value: Any) -> Any:
    return value


def _milliseconds(value: Any) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(milliseconds=value)
