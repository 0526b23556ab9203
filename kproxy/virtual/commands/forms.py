"""Forms of commands: a declaration from which an envelope is made, and read again.

    @of_kind(Kind.CUT, DiskUse.MODEST, level=ROUTES_FROM, form=Form(
        head="key=source number=after", body="through:Q parts:H made:I definer:U",
    ))
    class Cut(Command):
        source: PartitionKey
        ...

`head`: the fields of the envelope's head that carry a field of the command: `time_ms`, or with
another name `number=after`; `key` stands for queue id and partition.

`body`: a form byte, then fields by name and code (`virtual.fields`). A code in brackets is that of
each item of a field: `partitions:(P)`. `#name:H`, anywhere before a field, is its length in
bytes or items. Text or items without one go to the end.

`json`: fields of a body that is JSON: `name`, or with another key `set=given`. One with `?` behind
it is left out where it is false, and then has its default.

Kinds of the hot path, those that carry batches and those whose bodies depend on a level have no
form: they make their bytes by hand.
"""

import re
import struct
from collections import namedtuple
from collections.abc import Callable
from inspect import get_annotations
from typing import Any, NamedTuple, Self, dataclass_transform

import orjson  # a tenth of what the standard library's costs for each new queue (measured)

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.fields import codec
from kproxy.virtual.rows.forms import later_form

FORM = 1
_TOKEN = re.compile(r"(#?)(\w+):(\(\w+\)|\d*[A-Za-z?])")
_FORM_BYTE = bytes([FORM])


@dataclass_transform()
class Command:
    """A command that has a form. `of_kind` makes a named tuple of it, with these methods."""

    __slots__ = ()

    def envelope(self) -> Envelope:
        raise NotImplementedError

    @classmethod
    def decode(cls, envelope: Envelope) -> Self:
        """Raises ValueError for a form of a later kproxy."""
        raise NotImplementedError

    def _replace(self, **changes: Any) -> Self:
        """Return the command with other values of some fields."""
        raise NotImplementedError


class _Field(NamedTuple):
    """A field of a body. The values are those of the command, text as bytes."""

    pack: Callable[[list[Any]], bytes]
    read: Callable[[bytes, int, list[Any]], int]
    """Puts what it reads into the values; returns the position behind it."""


def _numbers(codes: str, sources: list[tuple[int, bool]]) -> _Field:
    """Numbers, and lengths of the fields that are marked."""
    form = struct.Struct(">" + codes)
    pack, size = form.pack, form.size

    def packed(values: list[Any]) -> bytes:
        return pack(*[len(values[i]) if is_length else values[i] for i, is_length in sources])

    def read(data: bytes, at: int, values: list[Any]) -> int:
        for (i, _), value in zip(sources, form.unpack_from(data, at), strict=True):
            values[i] = value
        return at + size

    return _Field(packed, read)


def _text(i: int, *, measured: bool, encoded: bool) -> _Field:
    def read(data: bytes, at: int, values: list[Any]) -> int:
        end = at + values[i] if measured else len(data)
        values[i] = data[at:end].decode() if encoded else data[at:end]
        return end

    return _Field(lambda values: values[i], read)


def _single(i: int, code: str) -> _Field:
    pack, read_one = codec(code)

    def read(data: bytes, at: int, values: list[Any]) -> int:
        values[i], at = read_one(data, at)
        return at

    return _Field(lambda values: pack(values[i]), read)


def _names(i: int) -> _Field:
    """So many items that are text behind its length."""
    pack, read_one = codec("N")

    def read(data: bytes, at: int, values: list[Any]) -> int:
        found = []
        for _ in range(values[i]):
            name, at = read_one(data, at)
            found.append(name)
        values[i] = found
        return at

    return _Field(lambda values: b"".join([pack(name) for name in values[i]]), read)


def _items(i: int, codes: str, make: Callable[..., Any] | None, *, measured: bool) -> _Field:
    """Items that are tuples of numbers. With more behind it, a P is a tuple in these."""
    form = struct.Struct(">" + codes.replace("P", "16sI"))
    pack, size, iter_unpack = form.pack, form.size, form.iter_unpack
    nested = codes[0] == "P" and codes != "P"

    def packed(values: list[Any]) -> bytes:
        if nested:
            return b"".join([pack(*item[0], *item[1:]) for item in values[i]])
        return b"".join([pack(*item) for item in values[i]])

    def read(data: bytes, at: int, values: list[Any]) -> int:
        end = at + values[i] * size if measured else len(data)
        found: Any = iter_unpack(data[at:end])
        if nested:
            found = [((queue_id, index), *rest) for queue_id, index, *rest in found]
        values[i] = list(found) if make is None else [make(*item) for item in found]
        return end

    return _Field(packed, read)


class _Binary:
    """A body of binary fields behind a form byte."""

    def __init__(self, kind: Kind, body: str, names: list[str], make: dict[str, Any]) -> None:
        tokens = _TOKEN.findall(re.sub(r"(\w+):N", r"#\1:H \1:T", body))
        measured = {name for is_length, name, _ in tokens if is_length}
        self._kind = kind
        self._texts = [names.index(name) for _, name, code in tokens if code == "T"]
        self._fields: list[_Field] = []
        self.codes = [code for _, name, code in tokens]
        """The codes of all fields, those of items in brackets."""
        codes, sources = "", list[tuple[int, bool]]()
        for is_length, name, code in tokens:
            i = names.index(name)
            if is_length or code == "U" or (code not in "TRP" and code[0] != "("):
                codes += "16s" if code == "U" else code
                sources.append((i, bool(is_length)))
                continue
            if codes:
                self._fields.append(_numbers(codes, sources))
                codes, sources = "", []
            if code == "(N)":
                self._fields.append(_names(i))
            elif code[0] == "(":
                found = _items(i, code[1:-1], make.get(name), measured=name in measured)
                self._fields.append(found)
            elif code == "P":
                self._fields.append(_single(i, code))
            else:
                self._fields.append(_text(i, measured=name in measured, encoded=code == "T"))
        if codes:
            self._fields.append(_numbers(codes, sources))

    def pack(self, command: Any) -> bytes:
        values = list(command)
        for i in self._texts:
            values[i] = values[i].encode()
        return _FORM_BYTE + b"".join([field.pack(values) for field in self._fields])

    def read(self, envelope: Envelope, values: list[Any]) -> None:
        data, at = bytes(envelope.body), 1
        if data[0] != FORM:
            raise later_form(f"a command {self._kind.name}", data[0])
        for field in self._fields:
            at = field.read(data, at, values)


class _Json:
    """A body that is JSON. Where it leaves a field out, that keeps the value it had."""

    def __init__(self, fields: str, names: list[str]) -> None:
        self._fields = list[tuple[str, int, bool]]()
        self.codes = list[str]()
        for said in fields.split():
            key, _, name = said.rstrip("?").partition("=")
            self._fields.append((key, names.index(name or key), said.endswith("?")))

    def pack(self, command: Any) -> bytes:
        said = {}
        for key, i, optional in self._fields:
            if command[i] or not optional:
                said[key] = command[i]
        return orjson.dumps(said)

    def read(self, envelope: Envelope, values: list[Any]) -> None:
        said = orjson.loads(envelope.body)
        for key, i, optional in self._fields:
            if not optional or key in said:
                values[i] = said[key]


class Form:
    """The bytes of a kind of command. `make`: what items of a field are made of, by its name."""

    codes: list[str]

    def __init__(self, head: str = "", body: str = "", json: str = "", **make: Any) -> None:
        self._head = dict(_pair(said) for said in head.split())
        self._body, self._json, self._make = body, json, make

    def complete(self, kind: Kind, declared: type) -> type:
        """Return the class of a kind: a named tuple of the declared fields, with its methods."""
        names = list(get_annotations(declared))
        given = {k: v for k, v in vars(declared).items() if k not in ("__dict__", "__weakref__")}
        defaults = [given.pop(name) for name in names if name in given]
        base = namedtuple(declared.__name__, names, defaults=defaults)  # type: ignore[misc]
        given |= self._methods(kind, names, [None] * (len(names) - len(defaults)) + defaults)
        return type(declared.__name__, (base, Command), {"__slots__": (), **given})

    def _methods(self, kind: Kind, names: list[str], unset: list[Any]) -> dict[str, Any]:
        key = names.index(self._head.pop("key")) if "key" in self._head else None
        head = [(field, names.index(name)) for field, name in self._head.items()]
        body: Any = None
        if self._body:
            body = _Binary(kind, self._body, names, self._make)
        elif self._json:
            body = _Json(self._json, names)
        self.codes = body.codes if body else []

        def envelope(command: Any) -> Envelope:
            made = Envelope(kind)
            if body is not None:
                made.body = body.pack(command)
            if key is not None:
                made.queue_id, made.partition = command[key]
            for field, i in head:
                setattr(made, field, command[i])
            return made

        def decode(cls: Any, envelope: Envelope) -> Any:
            values = unset.copy()
            if key is not None:
                values[key] = envelope.queue_id, envelope.partition
            for field, i in head:
                values[i] = getattr(envelope, field)
            if body is not None:
                body.read(envelope, values)
            return tuple.__new__(cls, values)  # half of what it costs to call it

        return {"envelope": envelope, "decode": classmethod(decode)}


def _pair(said: str) -> tuple[str, str]:
    field, _, name = said.partition("=")
    return field, name or field
