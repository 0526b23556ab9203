"""`kproxy create` and `kproxy alter`: queues and settings, also thousands at once."""

import click

from kproxy.common.errors import Code
from kproxy.tools.administration import alter, create
from kproxy.tools.changes import all_names, pairs, report, shown
from kproxy.tools.client import GROUP, QUEUE, Address, Client
from kproxy.tools.options import as_json_option, asked, server_option

_set = click.option(
    "--set", "given", multiple=True, metavar="KEY=VALUE", help="a setting; may be given again"
)
_dry_run = click.option("--dry-run", is_flag=True, help="check only: nothing changes")


@click.command(name="create")
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@click.option(
    "--partitions", type=click.IntRange(1), metavar="N", help="[default: as the server is set]"
)
@_set
@click.option("--if-not-exists", is_flag=True, help="pass over queues that are there")
@_dry_run
@as_json_option
@server_option
def create_command(
    names: tuple[str, ...], partitions: int | None, given: tuple[str, ...], if_not_exists: bool,
    dry_run: bool, as_json: bool, bootstrap_server: Address,
) -> None:  # fmt: skip
    """Create queues; - reads their names from standard input, one a line."""
    settings, wanted = pairs(given, "--set"), all_names(names)

    def ask(client: Client) -> None:
        found = create(client, wanted, partitions or -1, settings, dry=dry_run)
        if if_not_exists:
            found = (one for one in found if one.code != Code.TOPIC_ALREADY_EXISTS)
        done = "valid" if dry_run else "created"
        report(shown(found, wanted, "creating"), done, as_json, lambda name: {"queue": name})

    asked(bootstrap_server, ask)


@click.command(name="alter")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_set
@click.option("--unset", multiple=True, metavar="KEY", help="back to the default; likewise")
@click.option("--group", "of_groups", is_flag=True, help="the names are groups, not queues")
@_dry_run
@as_json_option
@server_option
def alter_command(
    names: tuple[str, ...], given: tuple[str, ...], unset: tuple[str, ...], of_groups: bool,
    dry_run: bool, as_json: bool, bootstrap_server: Address,
) -> None:  # fmt: skip
    """Change settings of queues or groups; - reads names from standard input."""
    changes: dict[str, str | None] = {**pairs(given, "--set"), **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("say what to change: --set KEY=VALUE or --unset KEY")
    if both := pairs(given, "--set").keys() & set(unset):
        raise click.UsageError(f"--set and --unset name the same setting: {min(both)}")
    wanted, kind = all_names(names), "group" if of_groups else "queue"

    def ask(client: Client) -> None:
        found = alter(client, GROUP if of_groups else QUEUE, wanted, changes, dry=dry_run)
        done = "valid" if dry_run else "altered"
        report(shown(found, wanted, "altering"), done, as_json, lambda name: {kind: name})

    asked(bootstrap_server, ask)
