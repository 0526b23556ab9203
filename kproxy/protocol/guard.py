"""Checks a request's shape before kio decodes it.

kio's native reader allocates an array by the count that the peer sent, and an impossible count
ends the process. It also raises at an unknown tagged field, which Kafka says to ignore (KIP-482).
The guard therefore walks each request first, with a walker compiled from kio's own schema. It
holds each count and length against the bytes that remain, and cuts out unknown tagged fields. It
allocates nothing by a number that a peer sent.
"""

from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin

from kproxy.protocol.frames import Frame
from kproxy.protocol.varint import Malformed, read_uvarint, uvarint

TEXT_BYTES_MAX = 0x7FFF
"""The longest string, in every version: no request may have a longer one, as in Kafka. So each name
that a client chooses fits the 16 bits that rows, commands and answers have for its length.
"""


class TooMany(Malformed):
    """More elements than are allowed."""

    def __init__(self) -> None:
        super().__init__("the request has more elements than request_elements_max")


class GuardWalk:
    """One walk: (start, end, replacement) of what is cut out, and how many elements may follow."""

    __slots__ = ("cuts", "elements_left")

    def __init__(self, elements_max: int) -> None:
        self.cuts: list[tuple[int, int, bytes]] = []
        self.elements_left = elements_max

    def take(self, count: int) -> None:
        """Count elements, or tagged fields. Raise TooMany."""
        self.elements_left -= count
        if self.elements_left < 0:
            raise TooMany


_ANY_LENGTH = 1 << 62
Walker = Callable[[bytes, int, int, GuardWalk], int]
"""walker(data, position, end, walk) -> next position. Raises Malformed."""

_FIXED_BYTES = {
    "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4,
    "uint32": 4, "timedelta_i32": 4, "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8,
    "datetime_i64": 8, "uuid": 16,
}  # fmt: skip


class Admitted(NamedTuple):
    """The bytes that kio may decode, from `position` to `end`, and how many elements they hold."""

    data: bytes
    position: int
    end: int
    elements: int


def admit(schema: Any, data: bytes, position: int, elements_max: int) -> Admitted:
    """Walk over a body that is to be decoded as `schema`. Raise Malformed."""
    walk = GuardWalk(elements_max)
    end = _struct_walker(schema)(data, position, len(data), walk)
    elements = elements_max - walk.elements_left
    if not walk.cuts:
        return Admitted(data, position, end, elements)
    pieces: list[bytes] = []
    behind = len(data) - end
    for start, end, replacement in walk.cuts:
        pieces += (data[position:start], replacement)
        position = end
    pieces.append(data[position:])
    whole = b"".join(pieces)
    return Admitted(whole, 0, len(whole) - behind, elements)


def skip_tags(data: Frame, position: int, end: int, elements_max: int) -> tuple[int, int]:
    """Walk over a tagged-field section of which no field is of interest.

    Return (next position, how many elements may follow). Raise Malformed.
    """
    if position < end and data[position] == 0:
        return position + 1, elements_max
    walk = GuardWalk(elements_max)
    whole = cast(bytes, data)  # read where it is: a large frame is not copied for each section
    return _tags_walker({})(whole, position, end, walk), walk.elements_left


def tag_value(data: Frame, position: int, wanted: int) -> bytes:
    """Return the value of a tagged field, of a section that was walked over; empty: there is none.

    The first of several with the same tag holds.
    """
    whole, end = cast(bytes, data), len(data)
    count, position = read_uvarint(whole, position, end)
    for _ in range(count):
        tag, position = read_uvarint(whole, position, end)
        size, position = read_uvarint(whole, position, end)
        if tag == wanted:
            return bytes(data[position : position + size])
        position += size
    return b""


@cache
def _struct_walker(schema: Any) -> Walker:
    steps: list[Walker] = []
    tagged: dict[int, Walker] = {}
    fixed_bytes = 0
    for field in fields(schema):
        if (tag := field.metadata.get("tag")) is not None:
            tagged[tag] = _field_walker(field, schema.__flexible__)
            continue
        size = _fixed_size(field)
        if size is not None:
            fixed_bytes += size
            continue
        if fixed_bytes:
            steps.append(_fixed_walker(fixed_bytes))
            fixed_bytes = 0
        steps.append(_field_walker(field, schema.__flexible__))
    if fixed_bytes:
        steps.append(_fixed_walker(fixed_bytes))
    if schema.__flexible__:
        steps.append(_tags_walker(tagged))

    def step(data: bytes, position: int, end: int, walk: GuardWalk) -> int:
        for part in steps:
            position = part(data, position, end, walk)
        return position

    return step


def array_type(field: Field[Any]) -> Any:
    """Return the field's annotation without None if it is an array, else None."""
    return next((part for part in _union_parts(field.type) if get_origin(part) is tuple), None)


def _union_parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _is_nullable(annotation: Any) -> bool:
    return NoneType in _union_parts(annotation)


def _fixed_size(field: Field[Any]) -> int | None:
    if array_type(field) is not None:
        return None
    return _FIXED_BYTES.get(field.metadata.get("kafka_type", ""))


def _fixed_walker(size: int) -> Walker:
    def step(data: bytes, position: int, end: int, walk: GuardWalk) -> int:
        position += size
        if position > end:
            raise Malformed("the request ends inside a field")
        return position

    return step


def _field_walker(field: Field[Any], flexible: bool) -> Walker:
    if array_type(field) is not None:
        return _array_walker(field, flexible)
    nested = [part for part in _union_parts(field.type) if is_dataclass(part)]
    if nested:
        return _nested_walker(nested[0], _is_nullable(field.type))
    kind = field.metadata["kafka_type"]
    if kind in _FIXED_BYTES:
        return _fixed_walker(_FIXED_BYTES[kind])
    return _sized_walker(kind, flexible, _is_nullable(field.type))


def _nested_walker(schema: Any, nullable: bool) -> Walker:
    inner = _struct_walker(schema)
    if not nullable:
        return inner

    def step(data: bytes, position: int, end: int, walk: GuardWalk) -> int:
        if position >= end:
            raise Malformed("the request ends inside a structure")
        if data[position] == 0xFF:
            return position + 1
        return inner(data, position + 1, end, walk)

    return step


def length_reader(width: int) -> Callable[[bytes, int, int], tuple[int, int]]:
    """Read a length or count: fixed `width` bytes, or with width 0 a varint of length plus one."""
    if width == 0:

        def read_compact(data: bytes, position: int, end: int) -> tuple[int, int]:
            if position < end and (first := data[position]) < 0x80:
                return first - 1, position + 1
            value, position = read_uvarint(data, position, end)
            return value - 1, position

        return read_compact

    def read_fixed(data: bytes, position: int, end: int) -> tuple[int, int]:
        if position + width > end:
            raise Malformed("the request ends inside a length")
        value = int.from_bytes(data[position : position + width], "big", signed=True)
        return value, position + width

    return read_fixed


def _sized_walker(kind: str, flexible: bool, nullable: bool) -> Walker:
    read_length = length_reader(0 if flexible else 2 if kind == "string" else 4)
    most = TEXT_BYTES_MAX if kind == "string" else _ANY_LENGTH

    def step(data: bytes, position: int, end: int, walk: GuardWalk) -> int:
        length, position = read_length(data, position, end)
        if length < 0:
            if length == -1 and nullable:
                return position
            raise Malformed(f"a {kind} has length {length}")
        if length > end - position or length > most:
            longer = "the request" if length > end - position else f"{most}, the most"
            raise Malformed(f"a {kind} of {length} bytes is longer than {longer}")
        return position + length

    return step


def _array_walker(field: Field[Any], flexible: bool) -> Walker:
    read_count = length_reader(0 if flexible else 4)
    inner_type: Any = get_args(array_type(field))[0]
    fixed: int | None = None
    if is_dataclass(inner_type):
        schema: Any = inner_type
        element = _struct_walker(schema)
    else:
        kind = field.metadata["kafka_type"]
        fixed = _FIXED_BYTES.get(kind)
        element = _fixed_walker(fixed) if fixed else _sized_walker(kind, flexible, False)
    least = fixed or 1
    nullable = _is_nullable(field.type) or _is_nullable(inner_type)

    def step(data: bytes, position: int, end: int, walk: GuardWalk) -> int:
        count, position = read_count(data, position, end)
        if count < 0:
            if count == -1 and nullable:
                return position
            raise Malformed(f"an array has {count} elements")
        if count * least > end - position:
            raise Malformed(f"an array of {count} elements is longer than the request")
        walk.take(count)
        if fixed:
            return position + count * fixed
        for _ in range(count):
            position = element(data, position, end, walk)
        return position

    return step


def _tags_walker(known: dict[int, Walker]) -> Walker:
    def step(data: bytes, position: int, end: int, walk: GuardWalk) -> int:
        if position < end and data[position] == 0:
            return position + 1
        start = position
        count, position = read_uvarint(data, position, end)
        if count * 2 > end - position:
            raise Malformed(f"{count} tagged fields are longer than the request")
        walk.take(count)
        kept: list[bytes] = []
        for _ in range(count):
            field_start = position
            tag, position = read_uvarint(data, position, end)
            size, position = read_uvarint(data, position, end)
            if size > end - position:
                raise Malformed("a tagged field is longer than the request")
            if (walker := known.get(tag)) is not None:
                nested = GuardWalk(walk.elements_left)
                # kio goes by the value and never by the size: where they differ it would read
                # on from another byte than this walk.
                if walker(data, position, position + size, nested) != position + size:
                    raise Malformed("a tagged field is longer than its value")
                walk.elements_left = nested.elements_left
                if nested.cuts:
                    raise Malformed("an unknown tagged field inside a tagged field")
                kept.append(data[field_start : position + size])
            position += size
        if len(kept) < count:
            walk.cuts.append((start, position, uvarint(len(kept)) + b"".join(kept)))
        return position

    return step
