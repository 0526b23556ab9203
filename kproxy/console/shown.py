"""Values as pages show them: markup, control and bidi characters in them are text."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from kproxy.common.printable import printable
from kproxy.console.pages import link
from kproxy.tools.output import size
from kproxy.tools.records.waiting import key_shown

_HERE = Path(__file__).parent
FORMS = ("auto", "text", "json", "hex")
SHOWN_BYTES_MAX = 64 << 10
_INDENT_MAX = 20
_HEX_BYTES = 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


class Shown(NamedTuple):
    """Bytes as text: in which form, and how many bytes were left out."""

    text: str
    form: str
    left_out: int = 0


def decoded(data: bytes | None, form: str = "auto", most: int = SHOWN_BYTES_MAX) -> Shown:
    """Return bytes as they can be shown; `auto`: as JSON, as text, or as hexadecimal digits."""
    if data is None:
        return Shown("", "null")
    left_out = max(0, len(data) - most)
    data = data[:most]
    if form == "hex":
        return Shown(_hex(data), "hex", left_out)
    if form == "text":
        return Shown(data.decode(errors="backslashreplace"), "text", left_out)
    text = _text(data, cut=left_out > 0)
    if text is None:
        return Shown(_hex(data), "hex", left_out)
    if form == "json" or text.lstrip()[:1] in ("{", "["):
        if not left_out and (pretty := _indented(text)) is not None:
            return Shown(pretty, "json")
    return Shown(text, "text", left_out)


def preview(data: bytes | None, form: str, most: int) -> Shown:
    """Return the beginning of bytes on one line."""
    if data is None:
        return Shown("", "null")
    some = data[:most]
    text = None if form == "hex" else _text(some, cut=len(data) > most)
    if text is None:
        return Shown(some[: most // 3].hex(" "), "hex", max(0, len(data) - most // 3))
    return Shown(text, "text", max(0, len(data) - most))


def _text(data: bytes, *, cut: bool) -> str | None:
    """Return the text that bytes are; None: they are none. `cut`: a character may be cut off."""
    for end in range(len(data), max(-1, len(data) - (4 if cut else 1)), -1):
        try:
            return data[:end].decode()
        except UnicodeDecodeError:
            pass
    return None


def _indented(text: str) -> str | None:
    """Return JSON on several lines; None: it is none. No token changes, and none is left out."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    depth, parts, after = 0, [], ""
    for token in _TOKEN.findall(text):
        if token in "]}":
            depth -= 1
            parts.append("" if after in ("[", "{") else _line(depth))
        elif after in ("[", "{", ","):
            parts.append(_line(depth))
        depth += token in "[{"
        parts.append(": " if token == ":" else token)
        after = token
    return "".join(parts)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _INDENT_MAX)


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), _HEX_BYTES):
        some = data[start : start + _HEX_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in some)
        lines.append(f"{start:06x}  {some.hex(' '):<{3 * _HEX_BYTES}} {text}")
    return "\n".join(lines)


# -- templates


def _safe(value: Any) -> Any:
    """Return what an expression of a template shows: no character of it is invisible."""
    return value if isinstance(value, Markup) else printable(str(value))


def _lines(text: str) -> Markup:
    """Return a text of several lines, for a `pre`: its line ends stay line ends."""
    lines = text.replace("\r\n", "\n").expandtabs(4).split("\n")
    return Markup("\n").join(escape(printable(line)) for line in lines)


def _time(time_ms: int | None) -> str:
    if time_ms is None or time_ms < 0:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _whole(number: float | None) -> str:
    return "–" if number is None else f"{number:,.0f}"


def seconds(value: float | None) -> str:
    """Return a time for people."""
    if value is None:
        return "–"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _segment(text: str) -> str:
    return quote(text, safe="")


@cache
def environment() -> Environment:
    """Return the templates. All that they show is escaped."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined,
        finalize=_safe, trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    filters: dict[str, Callable[..., Any]] = {
        "lines": _lines, "time": _time, "count": _count, "size": size, "segment": _segment,
        "waiting_key": key_shown, "seconds": seconds, "whole": _whole,
    }  # fmt: skip
    made.filters.update(filters)
    made.globals["link"] = link
    return made


def rendered(template: str, values: dict[str, Any]) -> str:
    text: str = environment().get_template(template).render(values)
    return text
