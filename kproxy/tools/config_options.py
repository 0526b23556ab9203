"""Command line options that are settings of the server, and the file of settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kproxy.config import FIELDS, Config, load


def settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each of these fields of Config, or all, with its default in the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, field in reversed(FIELDS.items()):
            if names and name not in names:
                continue
            flag = name.replace("_", "-")
            shown = "" if field.default is None else f" [default: {_shown(field.default)}]"
            text = f"{field.description}{shown}"
            if field.annotation is bool:
                option = click.option(f"--{flag}/--no-{flag}", name, default=None, help=text)
            else:
                option = click.option(f"--{flag}", name, default=None, help=text, metavar="VALUE")
            command = option(command)
        return command

    return decorate


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return str(default)


config_file = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="KPROXY_CONFIG",
    help="TOML file of settings, named as the flags with _ for -",
)


def loaded(config_file: Path | None, flags: dict[str, Any]) -> Config:
    """Load the settings that flags, environment and file give. Raises BadConfig."""
    return load({name: value for name, value in flags.items() if value is not None}, config_file)
