"""The serving end of the admin socket."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import structlog

from kproxy.admin_socket import LINE_BYTES_MAX, NAME, reachable
from kproxy.common.errors import CannotStart, KafkaError

_log = structlog.get_logger()

_CONNECTIONS_MAX = 8
_ASK_S = 10.0
_TELL_S = 0.2
_END_S = 5.0
_CREDENTIALS = struct.Struct("3i")


class Refused(Exception):
    """A command is not carried out: one line for a person."""


class Asked:
    """One command while it is carried out."""

    def __init__(
        self, arguments: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.arguments = arguments
        self._reader = reader
        self._writer = writer

    def report(self, **values: Any) -> None:
        """Tell who asked how far it is."""
        self.send("progress", values)

    async def gone(self) -> None:
        """Wait until who asked sends a line, has ended or has gone away."""
        try:
            await self._reader.readline()
        except OSError as error:
            _let_frames_go(error)
        except ValueError:
            pass  # a line that is too long

    def send(self, kind: str, values: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps({kind: values}).encode() + b"\n")


def _let_frames_go(error: OSError) -> None:
    """Drop the traceback of an error that its reader keeps: its frames would keep the reader."""
    error.__traceback__ = None


Command = Callable[[Asked], Awaitable[dict[str, Any]]]
"""Carries out a command and returns what is done. Raises Refused, CannotStart or KafkaError."""


@asynccontextmanager
async def admin_socket(directory: Path, commands: Mapping[str, Command]) -> AsyncIterator[None]:
    """Serve commands while the block lasts; who holds the directory's lock may.

    Without a socket, where the directory allows none, kproxy serves as well.
    """
    try:
        listening = _bound(directory)
    except OSError as error:
        _log.warning("admin_socket_not_open", path=str(directory / NAME), reason=str(error))
        yield
        return
    serving = _Serving(commands)
    server = await asyncio.start_unix_server(
        serving.connected, sock=listening, limit=LINE_BYTES_MAX
    )
    try:
        yield
    finally:
        server.close()
        with anyio.CancelScope(shield=True):
            await serving.end()
        with suppress(OSError):
            (directory / NAME).unlink()


def _bound(directory: Path) -> socket.socket:
    (directory / NAME).unlink(missing_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listening = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(listening.fileno(), 0o600)  # before it has a name, where the system obeys that
        listening.bind(reachable(directory, descriptor))
        (directory / NAME).chmod(0o600)
        listening.listen(_CONNECTIONS_MAX)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    finally:
        os.close(descriptor)
    return listening


class _Serving:
    """The connections of one socket."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = commands
        self._tasks: set[asyncio.Task[Any]] = set()

    async def end(self) -> None:
        """Give what is done time to be told; what is not done is ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_TELL_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_S)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= _CONNECTIONS_MAX and _is_operator(writer):
                await self._answer(reader, writer)
        except OSError as error:  # the client is gone
            _let_frames_go(error)
        except asyncio.CancelledError:
            pass  # this server ends
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = Asked({}, reader, writer)
        try:
            with anyio.fail_after(_ASK_S):
                asked.arguments = _decoded(await reader.readline())
            name = str(asked.arguments.get("command"))
            if name not in self._commands:
                raise Refused(f"this kproxy knows no command {name}")
            _log.info("admin_command", command=name)
            asked.send("done", await self._commands[name](asked))
        except (Refused, CannotStart, KafkaError, ValueError) as error:
            asked.send("error", str(error))
        except TimeoutError:
            asked.send("error", "no command came")
        except OSError as error:
            asked.send("error", str(error))
            _let_frames_go(error)
        except Exception as error:
            _log.exception("admin_command_failed")
            asked.send("error", f"it failed: {error}")
        await writer.drain()


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise Refused("a command is a JSON object")
    return values


def _is_operator(writer: asyncio.StreamWriter) -> bool:
    """Whether who connected is the user that this process runs as, or root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the file's permissions say who may
    connection = writer.get_extra_info("socket")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[1] in (0, os.geteuid())
