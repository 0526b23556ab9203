"""`kproxy drain`: hands a worker's shards to the others and stops it."""

from pathlib import Path

import click

from kproxy.admin_socket.client import Answers, asking
from kproxy.common.errors import CannotStart
from kproxy.store.directory_lock import wait_unlocked
from kproxy.tools.config_options import data_dir_option
from kproxy.tools.output import bar

_END_S = 60.0


@click.command(name="drain")
@data_dir_option
def drain_command(data_dir: Path) -> None:
    """Hand a worker's shards to other workers, then stop it.

    SIGTERM does the same. If the data directory is that of several workers, all of them are
    stopped; DIR/worker-0 is the first one's own, which is started again then.
    """
    with asking(data_dir, "drain") as answers:
        left = _shown(answers)
    if not wait_unlocked(data_dir, _END_S):
        raise CannotStart("its shards are handed over, but it has not ended: see its log")
    rest = f"; {left} shards were left to be taken over" if left else ""
    click.echo(f"stopped{rest}")


def _shown(answers: Answers) -> int:
    """Show how far it is; how many shards nobody has taken."""
    most = left = 0
    with bar("handing over shards", None) as told:
        for values in answers.progress():
            left = values["shards"]
            most = max(most, left)
            told(total=most, completed=most - left)
    return left
