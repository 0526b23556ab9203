"""Command line options that are settings of the server, and the file of settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import ByteSize

from kproxy.config.server import ENV_PREFIX, FIELDS, SECTIONS, Config, load, title_of
from kproxy.tools.options import path

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class GroupedCommand(click.Command):
    """A command whose help has its settings in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (line := parameter.get_help_record(ctx)) is not None:
                lines.setdefault(section(parameter.name or ""), []).append(line)
        for title in ("Options", *map(title_of, SECTIONS)):
            with formatter.section(title):
                formatter.write_dl(lines.get(title, []))


def section(name: str) -> str:
    """Return the section of the help that a setting is in; `Options` for all else."""
    found = (one for one in SECTIONS if name in FIELDS and name in one.model_fields)
    return next(map(title_of, found), "Options")


def metavar(name: str) -> str:
    """Return what stands for a setting's value in the help."""
    annotation, form = FIELDS[name].annotation, FIELDS[name].title
    kinds = {annotation, *get_args(annotation)}
    if form is not None:
        return form
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    for kind, shown in ((ByteSize, "BYTES"), (Path, "FILE"), (str, "TEXT")):
        if kind in kinds:
            return shown
    for unit in ("ms", "minutes"):
        if unit in name.split("_"):
            return unit.upper()
    return "N"


def settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each of these fields of Config, or all, with its default in the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, field in reversed(FIELDS.items()):
            if names and name not in names:
                continue
            flag = name.replace("_", "-")
            shown = default(name)
            text = f"{field.description} [default: {shown}]" if shown else field.description
            if field.annotation is bool:
                option = click.option(f"--{flag}/--no-{flag}", name, default=None, help=text)
            else:
                option = click.option(
                    f"--{flag}", name, default=None, help=text, metavar=metavar(name)
                )
            command = option(command)
        return command

    return decorate


def default(name: str) -> str:
    """Return a setting's default as the help shows it; empty: none."""
    value = FIELDS[name].default
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, ByteSize):
        for size, unit in _UNITS:
            if value % size == 0:
                return f"{value // size}{unit}"
    return "" if value is None else str(value)


data_dir_option = path(
    "--data-dir", default=FIELDS["data_dir"].default, show_default=True,
    envvar=f"{ENV_PREFIX}DATA_DIR", help="the data directory of the kproxy to ask",
)  # fmt: skip
config_file = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=f"{ENV_PREFIX}CONFIG",
    help="TOML file of settings, named as the flags with _ for -",
)


def loaded(config_file: Path | None, flags: dict[str, Any]) -> Config:
    """Load the settings that flags, environment and file give. Raises BadConfig."""
    return load({name: value for name, value in flags.items() if value is not None}, config_file)
