"""Records as text: formats such as `%k:%v\\n`, and JSON lines, which can be read again."""

import base64
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import click

from kproxy.common.printable import printable

Headers = Sequence[tuple[str, bytes | None]]
FIELDS = {
    "k": "key", "v": "value", "h": "headers", "d": "timestamp (ms since 1970)",
    "p": "partition", "o": "offset", "t": "queue",
}  # fmt: skip
TIMESTAMP_MAX, PARTITION_MAX = (1 << 63) - 1, (1 << 31) - 1
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|([^%\\]+)", re.S)


class Record(NamedTuple):
    """A record that is to be written, or was read. Below 0: unknown."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = -1
    partition: int = -1
    offset: int = -1
    queue: str = ""


class Field(str):
    """A field's letter in a format."""


def parsed(text: str) -> list[Field | bytes]:
    """Return the fields of a format and the bytes between them. Raises BadParameter."""
    parts: list[Field | bytes] = []
    literal = b""
    for letter, hexadecimal, escaped, plain in _TOKEN.findall(text):
        if letter and letter in FIELDS:
            if literal:
                parts.append(literal)
            parts.append(Field(letter))
            literal = b""
        elif letter == "%":
            literal += b"%"
        elif hexadecimal:
            literal += bytes.fromhex(hexadecimal)
        elif escaped in _ESCAPES:
            literal += _ESCAPES[escaped]
        elif plain:
            literal += plain.encode(errors="surrogateescape")
        else:
            raise _unknown(text, letter, escaped)
    return [*parts, literal] if literal else parts


def _unknown(text: str, letter: str, escaped: str) -> click.BadParameter:
    if escaped or text.endswith("\\"):
        known = "\\n \\t \\r \\0 \\\\ \\xNN"
        return click.BadParameter(f"--format {text}: no \\{escaped}, there are {known}")
    known = ", ".join(f"%{name} {what}" for name, what in FIELDS.items())
    return click.BadParameter(f"--format {text}: no %{letter}, there are {known}, and %%")


def formatted(parts: Iterable[Field | bytes], *, escape: bool) -> Callable[[Record], bytes]:
    """Return the function that prints a record; `escape`: for a terminal."""
    makers = [_MAKERS[part] if isinstance(part, Field) else part for part in parts]

    def made(record: Record) -> bytes:
        return b"".join(
            one if isinstance(one, bytes) else (_escaped(one(record)) if escape else one(record))
            for one in makers
        )

    return made


def _escaped(data: bytes) -> bytes:
    return printable(data.decode(errors="backslashreplace")).encode()


_MAKERS: dict[str, Callable[[Record], bytes]] = {
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "h": lambda record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
    "d": lambda record: str(record.timestamp).encode(),
    "p": lambda record: str(record.partition).encode(),
    "o": lambda record: str(record.offset).encode(),
    "t": lambda record: record.queue.encode(),
}


def as_json(record: Record) -> bytes:
    """Return a line; bytes that are no UTF-8 are in `…_base64`."""
    line: dict[str, Any] = {
        "queue": record.queue, "partition": record.partition, "offset": record.offset,
        "timestamp": record.timestamp, **_member("key", record.key),
        **_member("value", record.value),
        "headers": [{"key": name, **_member("value", value)} for name, value in record.headers],
    }  # fmt: skip
    return json.dumps(line).encode() + b"\n"


def _member(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def from_json(line: bytes) -> Record:
    """Return what a line says; other members than a record's own are passed over.

    Raises ValueError with a line for a person.
    """
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError('a record is an object: {"key": "k", "value": "v"}')
    headers = found.get("headers") or ()
    if isinstance(headers, dict):
        headers = [{"key": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list | tuple) or not all(
        isinstance(one, dict) and isinstance(one.get("key"), str) for one in headers
    ):
        raise ValueError('headers are an object, or a list of {"key": "k", "value": "v"}')
    for one in headers:
        one["key"].encode()  # the client library ends the process over half a character
    numbers = [found.get(name, -1) for name in ("timestamp", "partition")]
    if not all(isinstance(one, int) for one in numbers):
        raise ValueError("timestamp and partition are whole numbers")
    return in_range(
        Record(
            _bytes(found, "key"), _bytes(found, "value"),
            [(one["key"], _bytes(one, "value")) for one in headers], *numbers,
        )
    )  # fmt: skip


def in_range(record: Record) -> Record:
    """Return a record whose numbers a batch has room for. Raises ValueError."""
    if record.timestamp > TIMESTAMP_MAX or record.partition > PARTITION_MAX:
        raise ValueError(f"a timestamp is {TIMESTAMP_MAX} at most, and a partition {PARTITION_MAX}")
    return record


def _bytes(found: dict[str, Any], name: str) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if isinstance(encoded, str):
        return base64.b64decode(encoded, validate=True)
    text = found.get(name)
    if text is None or isinstance(text, str):
        return None if text is None else text.encode()
    raise ValueError(f"{name} is a text or null; other bytes are in {name}_base64")
