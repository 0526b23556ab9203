"""Requests of any API and version from kio's schemas: sound ones, and such as stray from them.

Everything comes from a `random.Random`: the same seed makes the same bytes.
"""

import math
import random
import struct
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from kproxy.groups.model.consumer_protocol import encode_subscription
from kproxy.protocol.codec import request_schema
from kproxy.protocol.varint import uvarint
from kproxy.server.dispatch import RANGES
from tests.wire import batch

INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
NAMES = ["fuzz-a", "fuzz-b", "", ".", "no/name", "x" * 300, "ü", "g", "y" * 32_767]
TEXTS = [*NAMES, "retention.ms", "max.message.bytes", "5", "-1", "9" * 400, "z" * 70_000]
VERSIONS = [
    (key, version)
    for key, low, high in RANGES
    for version in range(3 if key == 0 else low, high + 1)
]
_FORMATS = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "bool": ">?",
    "timedelta_i32": ">i", "timedelta_i64": ">q", "float64": ">d", "uint16": ">H",
}  # fmt: skip
_FLIPS_MAX = 4


class Repeated(NamedTuple):
    """An array of one element many times."""

    element: Any
    count: int


# -- values


def an_int(rng: random.Random, bits: int) -> int:
    edge = 1 << (bits - 1)
    return rng.choice((0, 0, 0, 1, 1, -1, -2, 2, 7, edge - 1, -edge, rng.randrange(-edge, edge)))


def a_batch(rng: random.Random) -> bytes | None:
    data = bytearray(
        batch(
            *[b"v"] * rng.randrange(1, 4),
            producer_id=rng.choice((-1, 0, 1, 2**62)),
            epoch=an_int(rng, 16),
            sequence=an_int(rng, 32),
            times=(an_int(rng, 64),) * 4,
            attributes=an_int(rng, 16),
            count=rng.choice((None, an_int(rng, 32))),
            last_delta=rng.choice((None, an_int(rng, 32))),
        )
    )
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return rng.choice((bytes(data), bytes(data), bytes(data), None, b""))


def a_value(rng: random.Random, kind: str, nullable: bool, flexible: bool, ids: list[UUID]) -> Any:
    if nullable and rng.random() < 0.2:
        return None
    if kind in INTS:
        return an_int(rng, INTS[kind])
    if kind == "uint16":
        return rng.choice((0, 1, 7, 65_535, rng.randrange(65_536)))
    if kind == "float64":
        return rng.choice((0.0, 1.0, -1.0, 0.5, 1e300, math.inf, math.nan))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        most = 70_000 if flexible and rng.random() < 0.01 else 32_767  # longer ones are refused
        return rng.choice([text for text in TEXTS if len(text.encode()) <= most])
    if kind == "uuid":
        return rng.choice([*ids, UUID(int=0), UUID(int=5)])
    if kind in ("timedelta_i32", "timedelta_i64"):
        return rng.choice((0, 1, 20, -5))
    if kind == "records":
        return a_batch(rng)
    if kind == "bytes":
        return rng.choice((a_batch(rng) or b"", encode_subscription(("fuzz-a", "fuzz-b")), b""))
    raise AssertionError(kind)


def parts_of(annotation: Any) -> tuple[Any, bool]:
    """Return (the annotation without None, whether None was in it)."""
    if get_origin(annotation) is tuple or not get_args(annotation):
        return annotation, False
    kept = [part for part in get_args(annotation) if part is not type(None)]
    return kept[0], len(kept) < len(get_args(annotation))


def values_of(rng: random.Random, schema: Any, ids: list[UUID]) -> dict[str, Any]:
    """Return values of the right types that make no sense."""
    values: dict[str, Any] = {}
    for field in fields(schema):
        if field.default is not MISSING and rng.random() < 0.3:
            continue
        kept, nullable = parts_of(field.type)
        kind = field.metadata.get("kafka_type", "")
        if get_origin(kept) is tuple:
            inner, _ = parts_of(get_args(kept)[0])
            count = rng.choice((0, 1, 1, 2, 5))
            if nullable and rng.random() < 0.2:
                values[field.name] = None
            elif is_dataclass(inner):
                values[field.name] = [values_of(rng, inner, ids) for _ in range(count)]
            else:
                values[field.name] = [
                    a_value(rng, kind, False, schema.__flexible__, ids) for _ in range(count)
                ]
        elif is_dataclass(kept):
            values[field.name] = values_of(rng, kept, ids)
        else:
            values[field.name] = a_value(rng, kind, nullable, schema.__flexible__, ids)
    return values


# -- bytes


class Writer:
    """A writer of values as a schema says; a share of counts, lengths and tags strays from it."""

    def __init__(self, rng: random.Random | None = None, straying: float = 0.0) -> None:
        self._rng = rng or random.Random(0)
        self._straying = straying

    def struct(self, schema: Any, values: dict[str, Any]) -> bytes:
        flexible = bool(schema.__flexible__)
        out, tagged = bytearray(), {}
        for field in fields(schema):
            tag = field.metadata.get("tag")
            if tag is None:
                out += self._field(field, values.get(field.name, _default(field)), flexible)
            elif field.name in values:
                tagged[tag] = self._field(field, values[field.name], flexible)
        return bytes(out) + (self.tags(tagged) if flexible else b"")

    def tags(self, tagged: dict[int, bytes]) -> bytes:
        entries = [(tag, len(value), value) for tag, value in tagged.items()]
        if self._strays():
            entries.append((self._rng.randrange(64, 300), 3, b"abc"))
        if entries and self._strays():
            tag, size, value = self._rng.choice(entries)
            padding = self._rng.randbytes(self._rng.choice((1, 3, 8)))
            entries.append(self._rng.choice((
                (tag, size + len(padding), value + padding), (tag, size, value + padding),
                (tag, max(0, size - 1), value), (tag, size, value),
            )))  # fmt: skip
        count = len(entries) + (self._rng.choice((1, -1, 1000, 2**31)) if self._strays() else 0)
        out = uvarint(max(0, count))
        return out + b"".join(uvarint(tag) + uvarint(size) + value for tag, size, value in entries)

    def _strays(self) -> bool:
        return self._straying > 0 and self._rng.random() < self._straying

    def _length(self, length: int, width: int) -> bytes:
        if self._strays():
            length += self._rng.choice((1, -1, -2, 7, 1000, 50_000_000, 2**30))
        if width:
            edge = 1 << (8 * width - 1)
            return max(-edge, min(edge - 1, length)).to_bytes(width, "big", signed=True)
        return uvarint((length + 1) % 2**32)

    def _field(self, field: Field[Any], value: Any, flexible: bool) -> bytes:
        kept, nullable = parts_of(field.type)
        kind = field.metadata.get("kafka_type", "")
        if get_origin(kept) is tuple:
            if value is None:
                return self._length(-1, 0 if flexible else 4)
            return self._array(parts_of(get_args(kept)[0])[0], kind, value, flexible)
        if is_dataclass(kept):
            if value is None:
                return b"\xff"
            return (b"\x01" if nullable else b"") + self.struct(kept, value)
        return self._one(kind, value, flexible)

    def _array(self, inner: Any, kind: str, items: Any, flexible: bool) -> bytes:
        def write(item: Any) -> bytes:
            if is_dataclass(inner):
                return self.struct(inner, item)
            return self._one(kind, item, flexible)

        count = items.count if isinstance(items, Repeated) else len(items)
        start = self._length(count, 0 if flexible else 4)
        if isinstance(items, Repeated):
            return start + write(items.element) * count
        return start + b"".join(write(item) for item in items)

    def _one(self, kind: str, value: Any, flexible: bool) -> bytes:
        if isinstance(value, timedelta):
            value = value // timedelta(milliseconds=1)
        if kind == "float64":
            value = float(value)
        if kind in _FORMATS:
            return struct.pack(_FORMATS[kind], value)
        if kind == "uuid":
            return (value or UUID(int=0)).bytes
        width = 0 if flexible else 2 if kind == "string" else 4
        if value is None:
            return self._length(-1, width)
        data = value.encode() if isinstance(value, str) else value
        return self._length(len(data), width) + data


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING and not is_dataclass(field.default):
        return None if field.default is None else getattr(field.default, "value", field.default)
    kept, nullable = parts_of(field.type)
    if get_origin(kept) is tuple:
        return ()
    if is_dataclass(kept):
        return None if nullable else {}
    kind = field.metadata["kafka_type"]
    return "" if kind == "string" else b"" if kind in ("bytes", "records") else 0


def request(
    key: int, version: int, values: dict[str, Any], writer: Writer | None = None, name: str = "gen"
) -> bytes:
    """Return a request without its length."""
    writer, schema = writer or Writer(), request_schema(key, version)
    client_id = name.encode()
    header = struct.pack(">hhih", key, version, 1, len(client_id)) + client_id
    return (
        header + (writer.tags({}) if schema.__flexible__ else b"") + writer.struct(schema, values)
    )


def mutated(rng: random.Random, data: bytes, first: int = 8) -> bytes:
    """Return the same with some bits flipped, or some bytes doubled, removed, or a large number."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, _FLIPS_MAX)):
        at = rng.randrange(first, max(first + 1, len(out)))
        how = rng.randrange(4)
        if how == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            out[at:at] = out[at : at + rng.randrange(1, 9)]
        elif how == 2:
            del out[at : at + rng.randrange(1, 9)]
        else:
            number = rng.choice((b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\xff" * 4))
            out[at : at + len(number)] = number
    return bytes(out)


# -- requests


class Made(NamedTuple):
    """A request without its length, and how it came about."""

    kind: str
    frame: bytes

    @property
    def key(self) -> int:
        return int.from_bytes(self.frame[:2], "big", signed=True)

    def __str__(self) -> str:
        version = int.from_bytes(self.frame[2:4], "big", signed=True)
        shown = self.frame[:2000].hex() + ("…" if len(self.frame) > 2000 else "")
        return f"{self.kind} key {self.key} version {version}, {len(self.frame)} bytes: {shown}"


def sensible(schema: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Return values whose known names are what they should be; one element in each array."""
    values: dict[str, Any] = {}
    for field in fields(schema):
        kept, _ = parts_of(field.type)
        if get_origin(kept) is tuple:
            inner, _ = parts_of(get_args(kept)[0])
            kind = field.metadata.get("kafka_type", "")
            plain = known.get(field.name, "" if kind == "string" else 0)
            values[field.name] = [sensible(inner, known) if is_dataclass(inner) else plain]
        elif field.metadata.get("tag") is None and field.name in known:
            values[field.name] = known[field.name]
        elif is_dataclass(kept):
            values[field.name] = sensible(kept, known)
    return values


def array_paths(schema: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of a request's arrays, by the names of their fields."""
    found = []
    for field in fields(schema):
        kept, _ = parts_of(field.type)
        if get_origin(kept) is tuple:
            path = (*above, field.name)
            inner, _ = parts_of(get_args(kept)[0])
            found += [path, *(array_paths(inner, path) if is_dataclass(inner) else ())]
    return found


def repeated(values: dict[str, Any], path: tuple[str, ...], count: int) -> dict[str, Any]:
    """Return the same values with the element at `path` many times."""
    first = values[path[0]][0]
    if len(path) == 1:
        return {**values, path[0]: Repeated(first, count)}
    return {**values, path[0]: [repeated(first, path[1:], count)]}


def elements_of(values: Any) -> int:
    """Return how many elements a guard counts."""
    if isinstance(values, Repeated):
        return values.count * (1 + elements_of(values.element))
    if isinstance(values, dict):
        return sum(elements_of(value) for value in values.values())
    if isinstance(values, list | tuple):
        return len(values) + sum(elements_of(value) for value in values)
    return 0


def made(seed: str, known: dict[str, Any], ids: list[UUID], huge: int, odds: float) -> Made:
    """Return one request. A share of `odds` of them is huge: up to so many elements."""
    rng = random.Random(seed)
    key, version = rng.choice(VERSIONS)
    schema = request_schema(key, version)
    paths = array_paths(schema)
    if paths and rng.random() < 0.2 + odds:
        path, is_huge = rng.choice(paths), rng.random() < odds / (0.2 + odds)
        values = sensible(schema, known)
        per = max(1, elements_of(repeated(values, path, 1)))
        count = int(huge ** rng.uniform(0.7, 1)) // per if is_huge else rng.randrange(2, 300)
        frame = request(key, version, repeated(values, path, count))
        return Made("huge" if is_huge else "repeated", frame)
    values = values_of(rng, schema, ids) if rng.random() < 0.6 else sensible(schema, known)
    kind = rng.choice(("valid", "valid", "truncated", "mutated", "mutated", "straying"))
    if kind == "straying":
        return Made(kind, request(key, version, values, Writer(rng, rng.choice((0.02, 0.1)))))
    frame = request(key, version, values)
    if kind == "truncated":
        frame = frame[: rng.randrange(8, len(frame) + 1)]
    return Made(kind, mutated(rng, frame) if kind == "mutated" else frame)
