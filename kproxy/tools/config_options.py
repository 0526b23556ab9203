"""Command line options that are settings of the server, and the file of settings."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import ByteSize

from kproxy.config.server import FIELDS, Config, load

SECTIONS = {
    "Network": r"listen|advertise|connections?_(?!max_reauth)\w+|in_flight\w+|(receive|send)_\w+"
               r"|shutdown_ms_max",
    "Storage": r"data_dir|sync|segment_\w+|commit_\w+|disk_\w+|rows_\w+|keeper_\w+",
    "Cluster": r"bootstrap_servers|topic_prefix|shards|workers|kafka_config|create|session_ms"
               r"|allow_single_replica|(delivery|data_message|publish|drain)_\w+",
    "Queues": r"auto_create|partitions_\w+|batch_bytes_max|retention_\w+|compaction_\w+",
    "Limits": r"(fetch|frame|request|answer)_\w+|share_sessions_max",
    "Security": r"authorizer|super_users|allow_everyone\w+|login_\w+|connections_max_reauth_ms",
    "Groups": r"offset\w+|groups?_(?!consumer|share)\w+",
    "Consumer groups (KIP-848)": r"group_consumer_\w+",
    "Share groups (KIP-932)": r"group_share_\w+|errors_\w+",
    "Producers and transactions": r"(producer|transaction)\w+",
    "Metrics and logs": r"(http|metrics|log)_\w+",
}  # fmt: skip
"""The sections of `kproxy serve --help` in their order, and names of settings. No two overlap."""
_METAVARS = {
    "listen": "HOST:PORT", "advertise": "HOST:PORT", "http_listen": "HOST:PORT",
    "bootstrap_servers": "HOST:PORT,…", "sync": "always|interval:MS|never", "data_dir": "DIR",
    "metrics_queues": "REGEX", "metrics_groups": "REGEX", "http_hosts": "NAME,…",
    "super_users": "PRINCIPAL;…", "topic_prefix": "NAME",
    "errors_deadletterqueue_topic_name_prefix": "NAME",
}  # fmt: skip
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class GroupedCommand(click.Command):
    """A command whose help has its settings in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (line := parameter.get_help_record(ctx)) is not None:
                lines.setdefault(section(parameter.name or ""), []).append(line)
        for title in ("Options", *SECTIONS):
            with formatter.section(title):
                formatter.write_dl(lines.get(title, []))


def section(name: str) -> str:
    """Return the section of the help that a setting is in; `Options` for all else."""
    if name in FIELDS:
        for title, names in SECTIONS.items():
            if re.fullmatch(names, name):
                return title
    return "Options"


def metavar(name: str) -> str:
    """Return what stands for a setting's value in the help."""
    annotation = FIELDS[name].annotation
    kinds = {annotation, *get_args(annotation)}
    if name in _METAVARS:
        return _METAVARS[name]
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
            shown = "" if field.default in (None, "") else f" [default: {_shown(field.default)}]"
            text = f"{field.description}{shown}"
            if field.annotation is bool:
                option = click.option(f"--{flag}/--no-{flag}", name, default=None, help=text)
            else:
                option = click.option(
                    f"--{flag}", name, default=None, help=text, metavar=metavar(name)
                )
            command = option(command)
        return command

    return decorate


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, ByteSize):
        for size, unit in _UNITS:
            if default % size == 0:
                return f"{default // size}{unit}"
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
