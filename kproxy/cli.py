"""The `kproxy` command.

click is the usual library for commands. A command's module is imported when somebody asks for the
command: `kproxy queues` needs no server, which takes most of the time of an import.
"""

import os
import sys
from importlib import import_module

import click

from kproxy import __version__
from kproxy.common.errors import BadConfig, CannotStart, first_of
from kproxy.common.printable import printable

_NOT_MINE = 0o077
"""Files that kproxy makes are its user's alone: records and users' keys lie in them."""

_COMMANDS = {
    "alter": ("kproxy.tools.create:alter_command", "Change settings of queues or groups."),
    "backup": ("kproxy.tools.backup:backup_command", "Back up an embedded kproxy's data."),
    "check": ("kproxy.tools.check:check_command", "Check a data directory, or a backup."),
    "console": ("kproxy.console.command:console_command", "Show queues and groups in a browser."),
    "consume": ("kproxy.tools.records.consume:consume_command", "Print the records of queues."),
    "create": ("kproxy.tools.create:create_command", "Create queues."),
    "delete": ("kproxy.tools.commands:delete_command", "Delete queues, with their records."),
    "describe": ("kproxy.tools.commands:describe_command", "Show a queue in detail."),
    "drain": ("kproxy.tools.drain:drain_command", "Hand a worker's shards to others, stop it."),
    "groups": ("kproxy.tools.commands:groups_command", "List groups and their lag."),
    "health": ("kproxy.tools.health:health_command", "Ask whether the kproxy here serves."),
    "lanes": (
        "kproxy.tools.groups.lanes:lanes_command",
        "Show lanes of a share group, release held.",
    ),
    "letters": (
        "kproxy.tools.records.letter_counts:letters_command",
        "Count dead letters by cause.",
    ),
    "locate": ("kproxy.tools.locate:locate_command", "Print which worker has a queue."),
    "produce": ("kproxy.tools.records.produce:produce_command", "Write lines or files to a queue."),
    "queues": ("kproxy.tools.commands:queues_command", "List queues with records and bytes."),
    "redrive": ("kproxy.tools.records.redrive:redrive_command", "Pass dead letters on once more."),
    "restore": ("kproxy.tools.backup:restore_command", "Make a data directory from a backup."),
    "serve": ("kproxy.serve_command:serve_command", "Serve queues to Kafka clients."),
    "top": ("kproxy.tools.top:top_command", "Show what workers do, live."),
    "upgrade": ("kproxy.tools.upgrade:upgrade_command", "Put the newest level in force."),
    "users": ("kproxy.tools.users:users_command", "Show, add and delete users."),
    "waiting": ("kproxy.tools.records.waiting:waiting_command", "List what waits, or cancel it."),
}
"""A command's module and its name there, and the line about it that needs no import."""


class _Commands(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kproxy")
def cli() -> None:
    """Serve millions of queues behind the Kafka protocol."""
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
