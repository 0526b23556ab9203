"""A real PostgreSQL from Debian's binaries, in a directory of its own, reached by a Unix socket."""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.harness import eventually, need

USER = "postgres"
_PORT = 5432  # only a part of the socket's name
_databases = itertools.count()


class Postgres:
    """`env` is what its clients need in the environment."""

    def __init__(self, directory: Path, port: int = 0, *options: str) -> None:
        """Take `port`, where it is to be reached by TCP, too, and its settings as NAME=VALUE."""
        self._port = port or _PORT
        self._bin = _binaries()
        self._directory = directory
        self.env = {"PGHOST": str(directory), "PGPORT": str(self._port), "PGUSER": USER}
        # PostgreSQL refuses to run as root; Debian's package makes this user.
        self._owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(directory, USER, USER)
            self._owner = {"user": USER, "group": USER, "extra_groups": []}
        self._log = directory / "log"
        self._run("initdb", "--auth=trust", f"--username={USER}", "--no-sync", "--locale=C",
                  "--encoding=UTF8")  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", directory / "data", "-p", str(self._port),
                 "-F", "-c", f"listen_addresses={'127.0.0.1' if port else ''}",
                 "-c", f"unix_socket_directories={directory}",
                 *(word for one in options for word in ("-c", one))],
                cwd=directory, stderr=log, **self._owner,
            )  # fmt: skip
        eventually(self._answers, 30)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, "-D", self._directory / "data", *arguments], check=False,
            cwd=self._directory, capture_output=True, text=True, timeout=120, **self._owner,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with suppress(psycopg.OperationalError):
            self.connect(USER).close()
            return True
        return False

    def connect(self, database: str, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn(database), **options)

    def dsn(self, database: str) -> str:
        return f"host={self._directory} port={self._port} user={USER} dbname={database}"

    def create(self, *scripts: str) -> str:
        """Make a new database in which the scripts have run; return its name."""
        name = f"db{next(_databases)}"
        with self.connect(USER, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        with self.connect(name, autocommit=True) as connection:
            for script in scripts:
                connection.execute(script)
        return name

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # disconnects its clients
        assert self._process.wait(30) == 0, self._log.read_text()


def _binaries() -> Path:
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda path: int(path.parent.parent.name),
    )
    need(found, "PostgreSQL: apt install postgresql")
    return found[-1].parent


@contextmanager
def postgres(port: int = 0, *options: str) -> Iterator[Postgres]:
    """Serve for the length of a block. pytest's own directories are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="kproxy-postgres-") as directory:
        running = Postgres(Path(directory), port, *options)
        try:
            yield running
        finally:
            running.stop()
