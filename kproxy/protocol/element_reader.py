"""A reader of kio's values element by element: for large requests, on a thread.

kio reads a whole request in one call and holds the interpreter's lock meanwhile: 100 ms for a
hundred thousand queues. This reader gives the lock away between two elements. Its values are the
same.
"""

from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any, get_args

from kio.serial import entity_reader
from kio.serial._parse import get_field_reader

from kproxy.protocol.guard import array_type, length_reader
from kproxy.protocol.varint import read_uvarint

LogReader = Callable[[bytes, int], tuple[Any, int]]
"""reader(data, position) -> (value, bytes read), of what the guard has admitted."""


@cache
def sliced_reader(schema: Any) -> LogReader:
    """Return a reader like kio's `entity_reader`."""
    if not any(_elements(field) for field in fields(schema)):
        return entity_reader(schema)
    plain: list[tuple[str, LogReader]] = []
    tagged: dict[int, tuple[str, LogReader]] = {}
    absent: dict[str, Any] = {}
    for field in fields(schema):
        tag = field.metadata.get("tag")
        if tag is not None:
            tagged[tag] = field.name, get_field_reader(schema, field, False, True)
            absent[field.name] = field.default
        elif (inner := _elements(field)) is not None:
            plain.append((field.name, _array_reader(inner, bool(schema.__flexible__))))
        else:
            plain.append((field.name, get_field_reader(schema, field, False, False)))

    def read(data: bytes, start: int) -> tuple[Any, int]:
        values, position = dict(absent), start
        for name, reader in plain:
            values[name], size = reader(data, position)
            position += size
        if schema.__flexible__:
            count, position = read_uvarint(data, position, len(data))
            for _ in range(count):
                tag, position = read_uvarint(data, position, len(data))
                _, position = read_uvarint(data, position, len(data))
                name, reader = tagged[tag]
                values[name], size = reader(data, position)
                position += size
        return schema(**values), position - start

    return read


def _elements(field: Field[Any]) -> Any:
    """Return the schema of an array's elements, or None if the field is no array of structures."""
    found = array_type(field)
    inner = None if found is None else get_args(found)[0]
    return inner if is_dataclass(inner) else None


def _array_reader(inner: Any, flexible: bool) -> LogReader:
    read_count, element = length_reader(0 if flexible else 4), sliced_reader(inner)

    def read(data: bytes, start: int) -> tuple[Any, int]:
        count, position = read_count(data, start, len(data))
        if count < 0:
            return None, position - start
        found = []
        for _ in range(count):
            value, size = element(data, position)
            found.append(value)
            position += size
        return tuple(found), position - start

    return read
