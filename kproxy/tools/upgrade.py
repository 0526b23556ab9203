"""`kproxy upgrade`: checks whether every worker knows a newer level, and finalizes it."""

from typing import Any, NamedTuple

import click

from kproxy import __version__
from kproxy.common.errors import CannotStart
from kproxy.tools.client import Address, Client
from kproxy.tools.options import asked, server_option
from kproxy.tools.output import table
from kproxy.virtual.levels import FEATURE, NEWEST, OLDEST

_API_VERSIONS, _UPDATE_FEATURES = 18, 57
_UPGRADE = 1


class NodeLevel(NamedTuple):
    """The levels of one worker: the level in force, and the newest that it knows."""

    node: int
    address: str
    in_force: int
    newest: int


def known(client: Client, node: int) -> NodeLevel:
    """Return a worker's levels. Workers from before levels report none."""
    values = {"client_software_name": "kproxy", "client_software_version": __version__}
    answer = client.call(_API_VERSIONS, 3, values, node)
    newest = {f.name: f.max_version for f in answer.supported_features}
    in_force = {f.name: f.max_version_level for f in answer.finalized_features}
    host, port = client.nodes()[node]
    return NodeLevel(
        node, f"{host}:{port}", in_force.get(FEATURE, OLDEST), newest.get(FEATURE, OLDEST)
    )


def update(client: Client, *, validate_only: bool) -> None:
    """Ask for the newest level. Raises CannotStart: the server's reason."""
    wanted = {"feature": FEATURE, "max_version_level": NEWEST, "upgrade_type": _UPGRADE}
    values: dict[str, Any] = {"feature_updates": [wanted], "validate_only": validate_only}
    answer = client.call(_UPDATE_FEATURES, 1, values)
    if answer.error_code:
        raise CannotStart(f"not upgraded: {answer.error_message}")


@click.command(name="upgrade")
@click.option("--check", "action", flag_value="check", default=True, help="only say whether it can")
@click.option("--finalize", "action", flag_value="finalize", help="put the newest level in force")
@server_option
def upgrade_command(action: str, bootstrap_server: Address) -> None:
    """Raise the level that all workers write at, once each of them is of this release.

    It cannot be taken back: workers of older releases refuse to start from then on.
    """

    def ask(client: Client) -> list[NodeLevel]:
        return [known(client, node) for node in client.nodes()]

    workers = asked(bootstrap_server, ask)
    table(
        ["WORKER", "ADDRESS", "LEVEL", "KNOWS"],
        [(str(w.node), w.address, w.in_force, w.newest) for w in workers],
    )
    old = [w.address for w in workers if w.newest < NEWEST]
    if old:
        raise CannotStart(
            f"{', '.join(old)} does not know level {NEWEST}: start this release there first"
        )
    if all(w.in_force == NEWEST for w in workers):
        click.echo(f"level {NEWEST} is in force: nothing is left to do")
        return
    asked(bootstrap_server, lambda client: update(client, validate_only=action == "check"))
    if action == "check":
        click.echo(f"every worker knows level {NEWEST}: --finalize puts it in force, for good")
    else:
        click.echo(f"level {NEWEST} is in force")
