"""The admin socket: who may ask, what is answered, and that nothing on it does harm."""

import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from structlog.testing import capture_logs

from kproxy.admin_socket import NAME, server
from kproxy.admin_socket.client import NotServing, asking
from kproxy.admin_socket.server import Asked, Refused, admin_socket
from kproxy.common.errors import CannotStart
from tests.harness import patient


async def count(asked: Asked) -> dict[str, Any]:
    for number in range(asked.arguments.get("to", 3)):
        asked.report(number=number)
    return {}


async def refuse(asked: Asked) -> dict[str, Any]:
    raise Refused("not now")


async def fail(asked: Asked) -> dict[str, Any]:
    raise KeyError("ours")


COMMANDS = {"count": count, "refuse": refuse, "fail": fail}


def ask(directory: Path, command: str, **arguments: Any) -> list[Any]:
    with asking(directory, command, **arguments) as answers:
        return list(answers.progress())


async def asked(directory: Path, command: str, **arguments: Any) -> list[Any]:
    return await to_thread.run_sync(lambda: ask(directory, command, **arguments))


async def test_a_command_reports_and_is_done(tmp_path: Path) -> None:
    async with admin_socket(tmp_path, COMMANDS):
        assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
        assert await asked(tmp_path, "count", to=2) == [{"number": 0}, {"number": 1}]
        for command, said in (
            ("refuse", "not now"), ("fail", "it failed"), ("other", "knows no command other"),
        ):  # fmt: skip
            with pytest.raises(CannotStart, match=said):
                await asked(tmp_path, command)
    assert not (tmp_path / NAME).exists()
    with pytest.raises(NotServing):
        await asked(tmp_path, "count")


async def test_a_path_that_is_too_long_for_an_address(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    (deep / NAME).touch()  # a kill left it
    async with admin_socket(deep, COMMANDS):
        assert await asked(deep, "count", to=1) == [{"number": 0}]


async def test_without_a_socket_the_server_serves_as_well(tmp_path: Path) -> None:
    async with admin_socket(tmp_path / "absent", COMMANDS):
        pass


def _say(directory: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(10)
        one.connect(str(directory / NAME))
        with suppress(BrokenPipeError, ConnectionResetError):
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            while more := one.recv(4096):
                answer += more
        return answer


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"[]\n",
        b"{}\n",
        b"nonsense\n",
        b'{"command": 5}\n',
        b"x" * 200_000,
        b"[" * 60_000 + b"\n",
    ],
)
async def test_nonsense_is_an_error_of_that_connection(tmp_path: Path, data: bytes) -> None:
    with capture_logs() as logged:
        async with admin_socket(tmp_path, COMMANDS):
            answer = await to_thread.run_sync(_say, tmp_path, data)
    assert not any(event["event"] == "admin_command_failed" for event in logged)
    async with admin_socket(tmp_path, COMMANDS):
        assert not answer or answer.startswith(b'{"error"'), answer
        assert await asked(tmp_path, "count", to=1) == [{"number": 0}]


async def test_held_connections_keep_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_ASK_S", 0.2)
    async with admin_socket(tmp_path, COMMANDS):
        held = [socket.socket(socket.AF_UNIX) for _ in range(server._CONNECTIONS_MAX)]
        try:
            for one in held:
                one.connect(str(tmp_path / NAME))

            async def served() -> bool:
                try:
                    return await asked(tmp_path, "count", to=1) == [{"number": 0}]
                except CannotStart:
                    return False

            with anyio.fail_after(patient(10)):
                while not await served():
                    await anyio.sleep(0.05)
        finally:
            for one in held:
                one.close()


async def test_others_than_the_operator_are_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_is_operator", lambda writer: False)
    async with admin_socket(tmp_path, COMMANDS):
        with pytest.raises(CannotStart, match="before it was done"):
            await asked(tmp_path, "count")


async def test_command_under_way_ends_with_the_server(tmp_path: Path) -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def hold(asked: Asked) -> dict[str, Any]:
        began.set()
        try:
            await asked.gone()
        finally:
            ended.set()
        return {}

    said: list[Callable[[], Any]] = []

    async def asks() -> None:
        with pytest.raises(CannotStart, match="before it was done"):
            await asked(tmp_path, "hold")
        said.append(lambda: None)

    async with anyio.create_task_group() as tasks:
        async with admin_socket(tmp_path, {"hold": hold}):
            tasks.start_soon(asks)
            await began.wait()
        assert ended.is_set()
    assert said
