"""Forms of commands: a declaration from which an envelope is made, and read again.

    @of_kind(Kind.CUT, DiskUse.MODEST, level=ROUTES_FROM, head="key=source number=after",
             body="through:Q parts:H made:I definer:U")
    class Cut(Command):
        source: PartitionKey
        ...

`head`: the fields of the envelope's head that carry a field of the command: `time_ms`, or with
another name `number=after`; `key` stands for queue id and partition. `number=#groups` carries how
many there are, for who does not decode it.

`body`: a form byte, numbers by name and code (`virtual.fields`), then text, and items with the code
of each in brackets: `partitions:(P)`. `#name:H` among the numbers is the length of a field in bytes
or items. Without one it goes to the end. `<name:61s` lies before the form byte.
`flag+more:B` are two in one: a bit, and above it a number.

`json`: fields of a body that is JSON: `name`, or with another key `set=given`. One with `?` behind
it is left out where it is false, and then has its default. `flag`: a field that is the whole body:
one byte where it is true. `make`: what makes the items of a field.

Kinds of the hot path, those that carry batches and those whose bodies depend on a level have no
form: they make their bytes by hand.
"""

import re
import struct
from collections import namedtuple
from collections.abc import Callable
from inspect import get_annotations
from typing import Any, Self, dataclass_transform

import orjson  # a tenth of what the standard library's costs for each new queue (measured)

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.fields import pack_name, read_name
from kproxy.virtual.rows.forms import later_form

FORM = 1
_TOKEN = re.compile(r"([#<]?)([\w+]+):(\(\w+\)|\d*[A-Za-z?])")


@dataclass_transform(frozen_default=True)
class Command:
    """A command that has a form. `of_kind` makes a named tuple of it, with these methods."""

    __slots__ = ()

    def envelope(self) -> Envelope:
        raise NotImplementedError

    @classmethod
    def decode(cls, envelope: Envelope) -> Self:
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        raise NotImplementedError

    def _replace(self, **changes: Any) -> Self:
        """Return the command with other values of some fields."""
        raise NotImplementedError


class _Code:
    """The source of two functions: one makes an envelope of the fields of a command, one reads it.

    Fields are local variables of their names; what the functions need besides begins with `_`.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.globals: dict[str, Any] = {
            "_Envelope": Envelope, "_dumps": orjson.dumps, "_kind": kind, "_later_form": later_form,
            "_loads": orjson.loads, "_name": pack_name, "_names": _names, "_new": tuple.__new__,
        }  # fmt: skip
        self._write: list[str] = []
        self._arguments = ["_kind"]
        self._read: list[str] = []

    def head(self, head: str) -> None:
        for said in head.split():
            field, _, name = said.partition("=")
            name = name or field
            if field == "key":
                self._arguments.insert(1, f"*{name}")
                self._read.append(f"{name} = _envelope.queue_id, _envelope.partition")
            else:
                counted = name[0] == "#"
                self._arguments.append(f"{field}=len({name[1:]})" if counted else f"{field}={name}")
                if not counted:
                    self._read.append(f"{name} = _envelope.{field}")

    def flag(self, name: str) -> None:
        self._arguments.append(f"body=b'\\1' if {name} else b''")
        self._read.append(f"{name} = _envelope.body == b'\\1'")

    def json(self, fields: str, defaults: dict[str, Any]) -> None:
        self._write.append("_said = {}")
        self._read.append("_said = _loads(_envelope.body)")
        for said in fields.split():
            key, _, name = said.rstrip("?").partition("=")
            name = name or key
            if said.endswith("?"):
                self.globals[f"_default_{name}"] = defaults[name]
                self._write.append(f"if {name}: _said[{key!r}] = {name}")
                self._read.append(f"{name} = _said.get({key!r}, _default_{name})")
            else:
                self._write.append(f"_said[{key!r}] = {name}")
                self._read.append(f"{name} = _said[{key!r}]")
        self._arguments.append("body=_dumps(_said)")

    def binary(self, fields: list[tuple[str, str, str]], make: Any) -> None:
        codes, written, read, form_at = ">B", [str(FORM)], ["_form"], 0
        measured = {name for mark, name, _ in fields if mark == "#"}
        behind: list[str] = []
        reading: list[str] = []
        for mark, name, code in fields:
            is_length = mark == "#"
            length = f"_length_{name}" if name in measured else None
            if mark == "<":
                codes, written, read = f">{code}B", [name, *written], [name, *read]
                form_at = struct.calcsize(code)
            elif code == "T":
                self._write.append(f"{name} = {name}.encode()")
                behind.append(name)
                reading.append(f"_end = {f'_at + {length}' if length else 'None'}")
                reading.append(f"{name} = _data[_at:_end].decode()")
                reading.append("_at = _end")
            elif code[0] == "(":
                behind.append(self._items(name, code[1:-1], length, make, reading))
            else:
                assert not behind, f"{self._kind.name}: {name} is a number behind what is none"
                codes += code.replace("P", "16sI").replace("U", "16s")
                if "+" in name:
                    flag, _, more = name.partition("+")
                    reading.insert(0, f"{flag}, {more} = bool(_bits & 1), _bits >> 1")
                    written.append(f"{flag} | {more} << 1")
                    read.append("_bits")
                    continue
                written.append(f"len({name})" if is_length else "*" * (code == "P") + name)
                if code == "P":
                    read.append(f"_queue_{name}, _index_{name}")
                    reading.insert(0, f"{name} = _queue_{name}, _index_{name}")
                else:
                    read.append(str(length) if is_length else name)
        form = struct.Struct(codes)
        self.globals |= {"_pack": form.pack, "_unpack_from": form.unpack_from}
        parts = [f"_pack({', '.join(written)})", *behind]
        self._arguments.append(f"body={' + '.join(parts)}")
        self._read += [
            "_data = bytes(_envelope.body)",
            f"if _data[{form_at}] != {FORM}:"
            f" raise _later_form('a command {self._kind.name}', _data[{form_at}])",
            f"{', '.join(read)}, = _unpack_from(_data)",
            f"_at = {form.size}",
            *reading,
        ]

    def _items(
        self, name: str, code: str, length: str | None, make: Any, reading: list[str]
    ) -> str:
        """Return the expression that packs items. A P with more behind it is nested in them."""
        if code == "N":
            reading.append(f"{name}, _at = _names(_data, _at, {length})")
            return f"b''.join([_name(_item) for _item in {name}])"
        form, nested = struct.Struct(">" + code.replace("P", "16sI")), code[0] == "P" != code
        self.globals |= {
            f"_pack_{name}": form.pack, f"_unpack_{name}": form.iter_unpack, f"_make_{name}": make,
        }  # fmt: skip
        reading.append(f"_end = {f'_at + {length} * {form.size}' if length else 'None'}")
        found = f"_unpack_{name}(_data[_at:_end])"
        if nested:
            found = f"[_make_{name}((_queue, _i), *_rest) for _queue, _i, *_rest in {found}]"
        reading.append(f"{name} = {found}" if nested else f"{name} = list({found})")
        reading.append("_at = _end")
        fields = "*_item[0], *_item[1:]" if nested else "*_item"
        return f"b''.join([_pack_{name}({fields}) for _item in {name}])"

    def methods(self, names: list[str]) -> dict[str, Any]:
        """Return the functions, compiled: as fast as those that are written by hand."""
        fields = "".join(f"{name}, " for name in names)
        unpacked = [f"{fields}= _self"] if names else []
        lines = [
            "def envelope(_self):", *unpacked, *self._write,
            f"return _Envelope({', '.join(self._arguments)})",
            "def decode(_cls, _envelope):", *self._read, f"return _new(_cls, ({fields}))",
        ]  # fmt: skip
        source = "\n".join(line if line.startswith("def ") else f"    {line}" for line in lines)
        made: dict[str, Any] = {}
        exec(source, self.globals, made)
        return {"envelope": made["envelope"], "decode": classmethod(made["decode"])}


def _names(data: bytes, at: int, count: int) -> tuple[list[str], int]:
    """Return so many items that are text behind its length, and the position behind them."""
    found = []
    for _ in range(count):
        name, at = read_name(data, at)
        found.append(name)
    return found, at


def complete(
    kind: Kind, declared: type, *, head: str = "", body: str = "", json: str = "", flag: str = "",
    make: Callable[..., Any] | None = None,
) -> tuple[type, list[str]]:  # fmt: skip
    """Return a kind's class, a named tuple of the declared fields, and the codes of its body."""
    names = list(get_annotations(declared))
    given = {k: v for k, v in vars(declared).items() if k not in ("__dict__", "__weakref__")}
    defaults = {name: given.pop(name) for name in names if name in given}
    base = namedtuple(declared.__name__, names, defaults=defaults.values())  # type: ignore[misc]
    code, fields = _Code(kind), _TOKEN.findall(body)
    code.head(head)
    if fields:
        code.binary(fields, make)
    elif json:
        code.json(json, defaults)
    elif flag:
        code.flag(flag)
    given |= {"__slots__": (), **code.methods(names)}
    return type(declared.__name__, (base, Command), given), [code for *_, code in fields]
