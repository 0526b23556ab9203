"""Processes of kproxy, forked from one that has imported it: an import takes most of a start.

Only a real start will do where the interpreter itself is to be another one: with a library
preloaded, with other paths. Such processes are started as ever, unless `fork_in` was told of their
environment, for those that are started often.
"""

import array
import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
AS_INSTALLED = {"PYTHONPATH": str(ROOT / "tests" / "as_installed")}
KPROXY = (sys.executable, "-m", "kproxy")
_OF_INTERPRETERS = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "OPENSSL_", "SSL_")
_SET_CHILD_SUBREAPER = 36
_PARAMETERS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


def _of_interpreter(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return that of an environment by which one interpreter differs from another."""
    return frozenset(one for one in environment.items() if one[0].startswith(_OF_INTERPRETERS))


class _Zygote:
    """The process that forks, and the connection to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.zygote", str(theirs.fileno())], cwd=ROOT,
                env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip

    def fork(self, request: dict[str, Any], files: tuple[int, int, int]) -> int:
        """Return the id of a process that is a child of this one."""
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        with self._lock:
            _adopt(True)
            try:
                self._socket.sendmsg([json.dumps(request).encode()], sent)
                return int(self._socket.recv(100))
            finally:
                _adopt(False)

    def end(self) -> None:
        self._socket.close()
        self.process.wait(30)


def _adopt(on: bool) -> None:
    """Take over children of descendants that end: of the process between, no other's."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


_zygotes: dict[frozenset[tuple[str, str]], _Zygote] = {}
_starting = threading.Lock()


def fork_in(environment: Mapping[str, str]) -> _Zygote:
    """Have processes that begin in this environment forked from now on."""
    with _starting:
        key = _of_interpreter(environment)
        if key not in _zygotes:
            _zygotes[key] = _Zygote(environment)
            atexit.register(_zygotes[key].end)
        return _zygotes[key]


def _zygote() -> _Zygote:
    return fork_in(os.environ | AS_INSTALLED)


class Forked(subprocess.Popen[str]):
    """A process as Popen starts it, or of the zygote where that is the same."""

    def _execute_child(self, *values: Any) -> None:
        given = _PARAMETERS.bind(self, *values).arguments
        command = tuple(map(str, given["args"]))
        environment = os.environ if given["env"] is None else given["env"]
        plain = not any(given[name] for name in ("pass_fds", "preexec_fn", "start_new_session"))
        zygote = None
        if sys.platform == "linux" and command[:3] == KPROXY and plain:
            _zygote()
            zygote = _zygotes.get(_of_interpreter(environment))
        if zygote is None:
            super()._execute_child(*values)  # type: ignore[misc]
            return
        files = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        request = {
            "arguments": command[3:], "environment": dict(environment),
            "directory": str(given["cwd"] or Path.cwd()),
        }  # fmt: skip
        try:
            self.pid = zygote.fork(
                request, tuple(number if fd == -1 else fd for number, fd in enumerate(files))
            )  # type: ignore[arg-type]
            self._child_created = True
        finally:
            self._close_pipe_fds(  # type: ignore[attr-defined]
                *(given[name] for name in
                  ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
            )  # fmt: skip


def run_kproxy(
    *arguments: object,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run one of kproxy's commands to its end."""
    command = [*KPROXY, *map(str, arguments)]
    process = begin_kproxy(*arguments, env=env, stdin=subprocess.PIPE)
    with process:
        try:
            out, err = process.communicate(stdin, seconds)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def begin_kproxy(
    *arguments: object, env: Mapping[str, str] | None = None, stdin: int | None = None
) -> Forked:
    """Start one of kproxy's commands, whose outputs are pipes."""
    return Forked(
        [*KPROXY, *map(str, arguments)], text=True, cwd=ROOT,
        env=os.environ | AS_INSTALLED | (env or {}), stdin=stdin, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
