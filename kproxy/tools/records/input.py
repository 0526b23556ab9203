"""Records that `kproxy produce` reads from files and standard input, one after the other."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import BinaryIO

import click

from kproxy.common.errors import CannotStart
from kproxy.tools.records.text import Field, Record, from_json, in_range, parsed

_CHUNK = 1 << 18
_RECORD_BYTES_MAX = 100 << 20
"""The largest request that kproxy takes."""
_DIGITS_MAX = 20
_READ = "kvhdp"
"""The fields that an input may have."""
_NEWLINE = b"\n"

Read = Callable[[BinaryIO], Iterator[bytes]]
Parse = Callable[[bytes], Record]


class BadRecord(ValueError):
    """A piece of input that is no record; the message is one line for a person."""


def reader(text: str) -> tuple[Read, Parse]:
    """Return how a format cuts an input, and a piece of it. Raises BadParameter."""
    if text == "raw":
        return _whole, lambda piece: Record(None, piece)
    if text == "json":
        return lambda stream: pieces(stream, _NEWLINE), _json
    parts = parsed(text)
    end = parts.pop() if parts and isinstance(parts[-1], bytes) else _NEWLINE
    assert isinstance(end, bytes)
    fields = [part for part in parts if isinstance(part, Field)]
    if not fields:
        raise click.BadParameter(f"--format {text}: it names no field, as %v does")
    for field in fields:
        if field not in _READ:
            raise click.BadParameter(f"--format {text}: %{field} is for `kproxy consume` alone")
        if fields.count(field) > 1:
            raise click.BadParameter(f"--format {text}: %{field} is there twice")
    if any(isinstance(one, Field) and isinstance(other, Field)
           for one, other in pairwise(parts)):  # fmt: skip
        raise click.BadParameter(f"--format {text}: put a text between two fields")
    if parts == ["v"]:
        return lambda stream: pieces(stream, end), lambda piece: Record(None, piece)
    return lambda stream: pieces(stream, end), lambda piece: _fields(piece, parts)


def pieces(stream: BinaryIO, end: bytes) -> Iterator[bytes]:
    """Yield what lies before each `end`, and what is left behind the last. Raises CannotStart."""
    rest = bytearray()
    while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]
        looked_at = max(0, len(rest) - len(end) + 1)
        rest += chunk
        if rest.find(end, looked_at) >= 0:
            *whole, rest = rest.split(end)
            yield from map(bytes, whole)
        elif len(rest) > _RECORD_BYTES_MAX:
            raise _too_large()
    if rest:
        yield bytes(rest)


def _whole(stream: BinaryIO) -> Iterator[bytes]:
    data = stream.read(_RECORD_BYTES_MAX + 1)
    if len(data) > _RECORD_BYTES_MAX:
        raise _too_large()
    yield data


def _too_large() -> CannotStart:
    return CannotStart(f"a record has {_RECORD_BYTES_MAX} bytes at most; is --format right?")


def _json(piece: bytes) -> Record:
    try:
        return from_json(piece)
    except ValueError as error:
        raise BadRecord(f"no record in JSON: {error}") from None


def _fields(piece: bytes, parts: list[Field | bytes]) -> Record:
    """Cut a piece at the first place where each text between fields stands. Raises BadRecord."""
    found: dict[str, bytes] = {}
    field: Field | None = None
    for part in parts:
        if isinstance(part, Field):
            field = part
            continue
        before, text, piece = piece.partition(part)
        if not text or (field is None and before):
            raise BadRecord(f"there is no {part.decode(errors='backslashreplace')!r} in it")
        if field is not None:
            found[field] = before
        field = None
    if field is not None:
        found[field] = piece
    record = Record(
        found.get("k"), found.get("v"), headers_of(found.get("h", b"")),
        _number(found, "d"), _number(found, "p"),
    )  # fmt: skip
    try:
        return in_range(record)
    except ValueError as error:
        raise BadRecord(str(error)) from None


def headers_of(text: bytes) -> list[tuple[str, bytes | None]]:
    """Return headers that are written k=v,k2=v2. Raises BadRecord."""
    found: list[tuple[str, bytes | None]] = []
    for one in text.split(b",") if text else ():
        name, equals, value = one.partition(b"=")
        if not name or not equals:
            raise BadRecord("headers are written k=v,k2=v2")
        found.append((name.decode(errors="replace"), value))
    return found


def _number(found: dict[str, bytes], field: str) -> int:
    text = found.get(field, b"")
    if text and not (text.isdigit() and len(text) <= _DIGITS_MAX):
        raise BadRecord(f"%{field} is a whole number, not {text[:50]!r}")
    return int(text) if text else -1
