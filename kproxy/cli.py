"""The `kproxy` command.

click is the usual library for commands. A command's module is imported when somebody asks for the
command: `kproxy queues` needs no server, which takes most of the time of an import.
"""

import os
import sys
from importlib import import_module

import click

from kproxy import __version__
from kproxy.errors import BadConfig, CannotStart, first_of
from kproxy.printable import printable

_NOT_MINE = 0o077
"""Files that kproxy makes are its user's alone: records and users' keys lie in them."""

_COMMANDS = {
    "backup": "kproxy.tools.backup:backup_command",
    "check": "kproxy.tools.check:check_command",
    "delete": "kproxy.tools.commands:delete_command",
    "describe": "kproxy.tools.commands:describe_command",
    "drain": "kproxy.tools.drain:drain_command",
    "groups": "kproxy.tools.commands:groups_command",
    "health": "kproxy.tools.health:health_command",
    "locate": "kproxy.tools.locate:locate_command",
    "queues": "kproxy.tools.commands:queues_command",
    "restore": "kproxy.tools.backup:restore_command",
    "serve": "kproxy.serve_command:serve_command",
    "top": "kproxy.tools.top:top_command",
    "upgrade": "kproxy.tools.upgrade:upgrade_command",
    "users": "kproxy.tools.users:users_command",
}
"""A command's module and its name there."""


class _Commands(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kproxy")
def cli() -> None:
    """Millions of queues behind the Kafka protocol."""
    os.umask(os.umask(_NOT_MINE) | _NOT_MINE)


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
