"""The reference tables of the documentation, made from the code.

`python -m tests.project.documents` writes them into docs/, each between its markers. An event's
meaning is written in docs/events.md alone, beside its name; all else is declared in the code.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from tests.harness import ROOT

COMMAND = "python -m tests.project.documents"
UNKNOWN = "(what it means is to be written here)"
_SPECIAL = re.compile(r"(?<![\w`.-])(--[a-z][\w-]*|/[a-z]+\b|[a-z]+_[a-z_]+\b)(?![`.]\w)")


def table(titles: str, rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table; `titles`: with | between them."""
    lines = [f"| {titles} |", "|" + "---|" * len(titles.split("|"))]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
                    for row in rows]  # fmt: skip


def marked(text: str) -> str:
    """Return a text in which flags, paths and names with underscores are code."""
    return _SPECIAL.sub(r"`\1`", text)


# -- series


def series(declared: Iterable[Any]) -> list[str]:
    return table(
        "series | kind | meaning",
        (
            (f"`{one.shown}{{{','.join(one.labels)}}}`".replace("{}", ""), one.kind,
             marked(one.meaning))
            for one in declared
        ),
    )  # fmt: skip


def _of_worker() -> list[str]:
    from kproxy.observe.series import DECLARED

    return series(DECLARED)


def _selected() -> list[str]:
    from kproxy.observe.selected import SELECTED

    return series(SELECTED)


# -- events

DYNAMIC = {
    "client_does_not_read": "warning", "client_left": "warning",
    "client_stopped_inside_a_request": "warning", "connection_idle": "debug",
    "connection_pushed_out": "warning", "login_pushed_out": "warning",
    "shard_catching_up": "info", "shard_rebuilding": "info",
}  # fmt: skip
"""Events whose names are handed to the code that logs them, and their levels."""
_LOGS = re.compile(r"get_logger|\.warn\(")
_LEVELS = {"exception": "error", "warn": "warning"}
"""The levels of methods that are not called as theirs."""


def _names(argument: ast.expr) -> Iterator[str]:
    if isinstance(argument, ast.Constant):
        yield argument.value
    elif isinstance(argument, ast.IfExp):
        yield from _names(argument.body)
        yield from _names(argument.orelse)


def levels_of_events() -> dict[str, set[str]]:
    """Return the levels of each event that the source logs."""
    found = {name: {level} for name, level in DYNAMIC.items()}
    sources = (path.read_text() for path in (ROOT / "kproxy").rglob("*.py"))
    for source in (one for one in sources if _LOGS.search(one)):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of, method = ast.unparse(node.func.value), node.func.attr
                logs = of in ("_log", "structlog.get_logger()") or method == "warn"
                for name in _names(node.args[0]) if logs and node.args else ():
                    found.setdefault(name, set()).add(_LEVELS.get(method, method))
    return found


def _events() -> list[str]:
    told = dict(re.findall(r"^\| `(\w+)` \|.*?([^|]*) \|$", _page("events.md"), re.MULTILINE))
    return table(
        "event | level | meaning",
        (
            (f"`{name}`", ", ".join(sorted(levels)), told.get(name, UNKNOWN).strip())
            for name, levels in sorted(levels_of_events().items())
        ),
    )  # fmt: skip


# -- requests and commands


def _apis() -> list[str]:
    from kproxy.server.api_table import TABLE

    return table(
        "request | versions | needs",
        (
            (f"{api.key.name.replace('_', ' ').title().replace(' ', '')} ({key})",
             f"{api.low} to {api.high}" if api.low < api.high else f"{api.low}", api.rule.asks)
            for key, api in sorted(TABLE.items())
        ),
    )  # fmt: skip


def _commands() -> list[str]:
    from kproxy.cli import cli

    context = click.Context(cli)
    found = [(name, cli.get_command(context, name)) for name in cli.list_commands(context)]
    return table("command | does", (row for name, one in found for row in _rows(name, one)))


def _rows(name: str, command: Any) -> Iterator[tuple[str, str]]:
    if isinstance(command, click.Group):
        for inner in sorted(command.commands):
            yield from _rows(f"{name} {inner}", command.commands[inner])
        return
    arguments = [one.make_metavar(click.Context(command)) for one in command.params
                 if isinstance(one, click.Argument)]  # fmt: skip
    flags = [f"`{one.opts[0]}`" for one in command.params
             if isinstance(one, click.Option) and not one.hidden]  # fmt: skip
    said = (command.help or "").split("\n\n")[0].replace("\n", " ")
    yield f"`{' '.join(['kproxy', name, *arguments])}`", f"{said} {', '.join(flags)}".strip()


# -- settings


def _server_settings() -> list[str]:
    from kproxy.config.server import FIELDS, SECTIONS, title_of
    from kproxy.tools.config_options import default, metavar

    lines = []
    for section in SECTIONS:
        rows = []
        for name in section.model_fields:
            if name in FIELDS:
                flag, form = f"--{name.replace('_', '-')}", metavar(name)
                if FIELDS[name].annotation is bool:
                    form = ""
                rows.append((f"`{f'{flag} {form}'.strip()}`", default(name), _bounds(FIELDS[name]),
                             marked(FIELDS[name].description or "")))  # fmt: skip
        lines += [
            "",
            f"### {title_of(section)}",
            "",
            *table("flag | default | bounds | meaning", rows),
        ]
    return [*lines, ""]


def _listener_settings() -> list[str]:
    from kproxy.config.listeners import ListenerConfig

    return _settings_of(ListenerConfig)


def _issuer_settings() -> list[str]:
    from kproxy.config.issuers import OauthIssuer

    return _settings_of(OauthIssuer)


def _settings_of(model: Any) -> list[str]:
    rows = []
    for name, field in model.model_fields.items():
        form = str(field.annotation)
        words = re.findall(r"'([\w-]+)'", form) if "Literal" in form else []
        shown = "" if field.is_required() or field.default in (None, ()) else str(field.default)
        rows.append((f"`{name}`", shown, ", ".join(words), marked(field.description or "")))
    return table("setting | default | values | meaning", rows)


def _bounds(field: Any) -> str:
    """Return the bounds that a number has."""
    found = {}
    for one in field.metadata:
        for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            if (bound := getattr(one, name, None)) is not None:
                found[sign] = f"{sign} {bound}"
    return ", ".join(found.values())


def _queue_settings() -> list[str]:
    from kproxy.metadata.topic_settings import SETTINGS

    return table(
        "setting | default | meaning",
        (
            (f"`{one.name}`", one.default.replace(str((1 << 63) - 1), "2^63 - 1"),
             marked(one.documentation))
            for one in SETTINGS.values()
        ),
    )  # fmt: skip


def _group_settings() -> list[str]:
    from kproxy.config.server import Config
    from kproxy.metadata.group_settings import SETTINGS, GroupRules

    rules = GroupRules(Config().broker_values())
    rows = []
    for one in SETTINGS.values():
        bounds = rules.bounds(one)
        rows.append((f"`{one.name}`", rules.default(one),
                     "" if bounds is None else f"{bounds.least} to {bounds.most}",
                     marked(one.documentation)))  # fmt: skip
    return table("setting | default | bounds | meaning", rows)


# -- the pages

TABLES: dict[str, dict[str, Callable[[], list[str]]]] = {
    "metrics.md": {"series": _of_worker, "selected series": _selected},
    "events.md": {"events": _events},
    "security.md": {"requests": _apis},
    "settings.md": {"server": _server_settings, "listeners": _listener_settings,
                    "issuers": _issuer_settings, "queues": _queue_settings,
                    "groups": _group_settings},
    "tools.md": {"commands": _commands},
}  # fmt: skip
"""The tables of each page, by the names in their markers."""


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def made(name: str) -> str:
    """Return a page of docs/ with the tables that the code says."""
    text = _page(name)
    for what, rows in TABLES[name].items():
        begin, end = f"<!-- {what}: {COMMAND} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        assert found, f"docs/{name} has no line {begin}"
        text = before + begin + "\n".join(rows()) + "\n" + end + rest.partition(end)[2]
    return text


def main() -> None:
    """Write the tables of all pages."""
    for name in TABLES:
        (ROOT / "docs" / name).write_text(made(name))


if __name__ == "__main__":
    main()
