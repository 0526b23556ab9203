"""The asking end of the admin socket; blocking, for commands."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from kproxy.admin_socket import NAME, reachable
from kproxy.common.errors import CannotStart


class NotServing(CannotStart):
    """No kproxy serves on this data directory."""


class Answers:
    """The answers of a server to one command."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def progress(self) -> Iterator[dict[str, Any]]:
        """Yield its reports, until the command is done. Raises CannotStart."""
        while True:
            kind, values = self._next()
            if kind == "done":
                return
            yield values

    def release(self) -> None:
        """Tell it that what it holds is not needed any more, if it is there still."""
        with suppress(OSError):
            self._connection.sendall(b"\n")
            self._lines.readline()

    def close(self) -> None:
        self._lines.close()

    def _next(self) -> tuple[str, Any]:
        line = b""
        with suppress(OSError):
            line = self._lines.readline()
        if not line:
            raise CannotStart("kproxy has ended before it was done")
        ((kind, values),) = json.loads(line).items()
        if kind == "error":
            raise CannotStart(values)
        return kind, values


@contextmanager
def asking(directory: Path, command: str, **arguments: Any) -> Iterator[Answers]:
    """Ask the kproxy on a data directory to carry out a command, while the block lasts.

    Raises NotServing, CannotStart.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connection.connect(reachable(directory, descriptor))
            finally:
                os.close(descriptor)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise NotServing(f"no kproxy serves on {directory}: is --data-dir right?") from None
        except OSError as error:
            raise CannotStart(f"cannot use {directory / NAME}: {error.strerror}") from None
        with suppress(OSError):  # it may have said why already
            connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
        with closing(Answers(connection)) as answers:
            yield answers
