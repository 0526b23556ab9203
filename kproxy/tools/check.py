"""`kproxy check`: whether a data directory, or a backup, is sound."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from kproxy.common.errors import CannotStart
from kproxy.common.printable import printable
from kproxy.metadata.cluster_view import identity
from kproxy.shard.verification import Verification
from kproxy.store import backups
from kproxy.store.backups import BadBackup
from kproxy.store.directory_lock import locked
from kproxy.store.rocks import RowsFailed
from kproxy.tools.output import SHOWN_MAX, bar


@click.command(name="check")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
def check_command(directory: Path) -> None:
    """Check a data directory that nobody serves, or a backup: every CRC, and every row.

    Exit status 0 if it is sound; else a line for each fault, the first twenty.
    """
    with _held(directory):
        try:
            values = identity(directory)
            shards = sorted(directory.glob("shard-*"))
            if not shards:
                raise CannotStart(f"{directory} holds no shard: is it a data directory?")
            faults: list[str] = []
            for shard in shards:
                faults += _checked(shard, whole=not values.get("kafka"))
        except (OSError, ValueError, RowsFailed) as error:
            raise CannotStart(f"{directory}: {error}") from None
    for fault in faults[:SHOWN_MAX]:
        click.echo(printable(fault))
    if faults:
        raise CannotStart(f"{len(faults)} faults in {directory}")


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Hold the directory. Raises CannotStart if it is served, or is a backup that is not whole."""
    if (directory / backups.NAME).exists():
        try:
            backups.files_of(directory, backups.read_manifest(directory))
        except BadBackup as error:
            raise CannotStart(str(error)) from None
        yield
        return
    if not (directory / backups.META).exists():
        raise CannotStart(f"{directory} is no data directory, and no whole backup")
    with locked(directory):
        try:
            backups.refuse_unfinished(directory)
        except ValueError as error:
            raise CannotStart(f"{directory}: {error}") from None
        yield


def _checked(directory: Path, *, whole: bool) -> list[str]:
    with closing(Verification(directory, whole=whole)) as found:
        with bar(f"log of {directory.name}", found.log_bytes, of_bytes=True) as told:
            found.check_log(lambda count: told(advance=count))
        with bar(f"rows of {directory.name}", None) as told:
            found.check_rows(lambda count: told(advance=count))
        what = f"{found.frames} frames, {found.batches} batches, {found.rows} rows"
        click.echo(f"{directory.name}: {what}")
        return found.faults
