"""`kproxy backup` and `kproxy restore`: an embedded data directory's files, while it is served."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kproxy import __version__
from kproxy.admin_socket.client import NotServing, asking
from kproxy.common.errors import CannotStart
from kproxy.common.logs import configure
from kproxy.config.server import load
from kproxy.metadata.cluster_view import identity, raise_level
from kproxy.store import backups, files
from kproxy.store.backups import BadBackup, Manifest, Source
from kproxy.store.directory_lock import locked
from kproxy.store.rocks import RowsFailed
from kproxy.store.rows_reader import RowsReader
from kproxy.store.segments import DamagedLog, LogFailed
from kproxy.tools.config_options import data_dir_option
from kproxy.tools.options import path
from kproxy.tools.output import bar
from kproxy.virtual.levels import RESTORES_FROM

_TRIES = 20
_THEIRS = ("LOCK", "lost+found", "admin.sock")  # in a directory that counts as empty


@click.command(name="backup")
@path("--to", "target", required=True, metavar="DIR", help="a new or empty directory")
@click.option("--copy", is_flag=True, help="copy all files, also where they could be linked")
@data_dir_option
def backup_command(target: Path, copy: bool, data_dir: Path) -> None:
    """Back up an embedded kproxy's data directory, while it serves or while it is stopped.

    On the file system of the data directory, files that never change again are linked, which takes
    no time and no space. To have a backup elsewhere, name a directory there, or copy this one on.
    """
    _refuse_full(target)
    with _source(data_dir) as sources:
        manifest = Manifest(
            __version__, time.time_ns() // 1_000_000, _cluster_id(data_dir),
            {source.name: source.size for source in sources},
        )  # fmt: skip
        size = sum(manifest.files.values())
        try:
            files.make_directory(target)
            _put_all("backing up", sources, target, size, link=not copy)
            backups.sync_directories(target)
            manifest.write(target)
        except OSError as error:
            raise CannotStart(
                f"the backup in {target} is not whole: {error.strerror or error}; delete it"
            ) from None
    click.echo(f"backed up {len(manifest.files)} files, {size} bytes")


@contextmanager
def _source(data_dir: Path) -> Iterator[list[Source]]:
    """Yield the files of a data directory, held still while the block lasts. Raises CannotStart."""
    try:
        for _ in range(_TRIES):
            with asking(data_dir, "backup") as answers:
                staged = next(answers.progress(), None)
                if staged is None:
                    raise CannotStart("kproxy said nothing about its files")
                if whole := _opens(Path(staged["path"])):
                    yield backups.sources(Path(staged["path"]), staged["log"])
                answers.release()
            if whole:
                return
        raise CannotStart(backups.UNSTEADY)
    except NotServing:
        if not (data_dir / backups.META).exists():
            raise
    with locked(data_dir):
        if _identity(data_dir).get("kafka"):
            raise CannotStart(backups.ON_KAFKA)
        try:
            backups.refuse_unfinished(data_dir)
        except ValueError as error:
            raise CannotStart(f"{data_dir}: {error}") from None
        yield backups.sources(data_dir)


def _opens(staged: Path) -> bool:
    """Whether staged rows belong together: RocksDB notes a new table before it names it."""
    try:
        RowsReader(staged / backups.SHARD / "rows").close()
    except RowsFailed:
        return False
    return True


def _identity(directory: Path) -> dict[str, Any]:
    try:
        found = identity(directory)
    except (OSError, ValueError) as error:
        raise CannotStart(f"cannot read {directory / backups.META}: {error}") from None
    return found


def _cluster_id(directory: Path) -> str:
    return str(_identity(directory)["cluster_id"])


def _put_all(
    label: str, sources: list[Source], target: Path, size: int, *, link: bool
) -> None:  # fmt: skip
    with bar(label, size, of_bytes=True) as told:
        for source in sources:
            backups.put(source, target, link=link, told=lambda n: told(advance=n))


def _refuse_full(directory: Path) -> None:
    """Raise CannotStart if the directory holds anything else."""
    try:
        held = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotStart(f"cannot use {directory}: {error.strerror}") from None
    if backups.UNFINISHED in held:
        return
    if others := sorted(set(held) - set(_THEIRS)):
        raise CannotStart(f"{directory} is not empty: {others[0]} is there; name a new directory")


@click.command(name="restore")
@path("--from", "backup", required=True, metavar="DIR",
      help="a directory that kproxy backup has made")  # fmt: skip
@data_dir_option
def restore_command(backup: Path, data_dir: Path) -> None:
    """Make an embedded kproxy's data directory from a backup.

    The data directory must be new or empty; a restore that was broken off is begun anew. Producers
    from before it are fenced, and get new ids.
    """
    try:
        manifest = backups.read_manifest(backup)
        sources = backups.files_of(backup, manifest)
    except BadBackup as error:
        raise CannotStart(str(error)) from None
    configure("warning", "auto")
    now_ms = time.time_ns() // 1_000_000
    if now_ms < manifest.time_ms:
        raise CannotStart("the clock of this machine is behind the backup: set it first")
    _refuse_full(data_dir)
    with locked(data_dir):
        try:
            _restore(sources, data_dir, sum(manifest.files.values()), now_ms)
        except (OSError, DamagedLog, RowsFailed, LogFailed, ValueError) as error:
            raise CannotStart(f"{data_dir} is not restored: {error}") from None
    click.echo(f"restored {len(sources)} files; now: kproxy serve --data-dir {data_dir}")


def _restore(sources: list[Source], data_dir: Path, size: int, now_ms: int) -> None:
    mark = data_dir / backups.UNFINISHED
    mark.touch()
    backups.sync_directories(data_dir)
    shutil.rmtree(data_dir / backups.SHARD, ignore_errors=True)
    (data_dir / backups.META).unlink(missing_ok=True)
    _put_all("restoring", sources, data_dir, size, link=False)
    from kproxy.shard.restored import begin_again  # it imports the fold: --help needs none

    level = raise_level(data_dir, RESTORES_FROM)
    begin_again(data_dir / backups.SHARD, load({"data_dir": data_dir}, None, {}), level, now_ms)
    backups.sync_directories(data_dir)
    mark.unlink()
    files.sync_directory(data_dir)
