"""The `kproxy` command.

click is the usual library for commands. The options of `serve` come from `Config`.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import click

from kproxy import __version__
from kproxy.config import FIELDS, BadConfig, Config, load
from kproxy.errors import CannotStart, first_of
from kproxy.logs import configure
from kproxy.loop.garbage import collect_less
from kproxy.printable import printable
from kproxy.server.descriptors import raise_limit
from kproxy.server.listener import serve
from kproxy.supervisor import Supervisor, instructed
from kproxy.tools.backup import backup_command, restore_command
from kproxy.tools.check import check_command
from kproxy.tools.client_settings import ClientSettings
from kproxy.tools.commands import COMMANDS, given_settings, settings_option
from kproxy.tools.drain import drain_command
from kproxy.tools.locate import health, http_health, locate, secured_health
from kproxy.tools.upgrade import upgrade_command
from kproxy.tools.users import users_command

try:
    import uvloop  # noqa: F401
except ImportError:  # not on every platform; asyncio's own loop serves as well, more slowly
    _LOOP: dict[str, Any] = {}
else:
    _LOOP = {"use_uvloop": True}


_NOT_MINE = 0o077
"""Files that kproxy makes are its user's alone: records and users' keys lie in them."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kproxy")
def cli() -> None:
    """Millions of queues behind the Kafka protocol."""
    os.umask(os.umask(_NOT_MINE) | _NOT_MINE)


def _settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option for each of these fields of Config, or all, with its default in the help."""

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


def _config_file(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="KPROXY_CONFIG",
        help="TOML file of settings, named as the flags with _ for -",
    )(command)


def _loaded(config_file: Path | None, flags: dict[str, Any]) -> Config:
    return load({name: value for name, value in flags.items() if value is not None}, config_file)


@cli.command(name="serve")
@_settings()
@_config_file
@click.option("--supervised", is_flag=True, hidden=True)
def serve_command(config_file: Path | None, supervised: bool, **flags: Any) -> None:
    """Serve queues to Kafka clients until stopped.

    Every setting may also be given as KPROXY_… in the environment (KPROXY_DATA_DIR) or in the
    file; flags win over the environment, and that over the file.
    """
    config, together = instructed() if supervised else (_loaded(config_file, flags), [])
    configure(config.log_level, config.log_format, config.listen if supervised else None)
    collect_less()
    raise_limit()
    if config.workers > 1:
        anyio.run(Supervisor(config).run, backend_options=_LOOP)
    else:
        anyio.run(serve, config, supervised, together, backend_options=_LOOP)


@cli.command(name="locate")
@click.argument("queue")
@click.option("--partition", default=0, show_default=True, help="which of the queue's partitions")
@_settings("bootstrap_servers", "topic_prefix", "kafka_config")
@_config_file
def locate_command(queue: str, partition: int, config_file: Path | None, **flags: Any) -> None:
    """Print a queue's shard, the node that serves it, and that node's address."""
    click.echo(printable(locate(_loaded(config_file, flags), queue, partition)))


_OPERATIONS = (
    users_command,
    upgrade_command,
    drain_command,
    backup_command,
    restore_command,
    check_command,
)
for _command in (*COMMANDS, *_OPERATIONS):
    cli.add_command(_command)


@cli.command(name="health")
@_settings("listen", "advertise", "http_listen")
@settings_option
@click.option("--http", is_flag=True, help="ask /readyz at the --http-listen address instead")
@_config_file
def health_command(config_file: Path | None, http: bool, **flags: Any) -> None:
    """Ask the kproxy at the listen address whether it serves; exit status 0 if so."""
    config = _loaded(config_file, flags)
    if http:
        click.echo(printable(http_health(config)))
        return
    host, port = config.listen_address
    here = "localhost" if host in ("0.0.0.0", "::") else host
    if (settings := given_settings()) is not None and settings != ClientSettings():
        click.echo(printable(secured_health(here, port, settings)))
        return
    click.echo(printable(health(here, port)))


def main() -> None:
    """Run the command; a mistake is one line on standard error and exit status 2."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message().replace("\n", " "), 2)
    except click.Abort:
        _fail("stopped", 130)
    except BadConfig as error:
        _fail(str(error), 2)
    except CannotStart as error:
        _fail(str(error), 1)
    except BaseExceptionGroup as group:
        found = group.subgroup(CannotStart)
        if found is None:
            raise
        _fail(str(first_of(found)), 1)


def _fail(message: str, status: int) -> None:
    click.echo(f"kproxy: {printable(message)}", err=True)
    sys.exit(status)
