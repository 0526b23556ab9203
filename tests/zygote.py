"""A process that has imported kproxy and becomes a `kproxy` command as often as it is asked.

`tests.forked` starts one and asks. It has one thread and no event loop, therefore a fork of it is
what a new interpreter is once it has imported kproxy. The caller is to be the command's parent: a
process between the two ends at once, and the kernel gives its child to the caller.
"""

import array
import gc
import json
import os
import random
import socket
import sys
from typing import Any

import anyio._backends._asyncio  # noqa: F401  # anyio imports it when a loop begins

import kproxy.serving  # noqa: F401
from kproxy.cli import cli, main
from kproxy.server.api_table import RANGES
from kproxy.server.schemas import load_common

_REQUEST_BYTES_MAX = 1 << 20


def answering(caller: socket.socket) -> None:
    """Answer requests. Returns in each command's process; the zygote itself ends here."""
    while True:
        request, ancillary, _, _ = caller.recvmsg(
            _REQUEST_BYTES_MAX, socket.CMSG_SPACE(3 * array.array("i").itemsize)
        )
        if not request:
            sys.exit()
        files = array.array("i")
        for _, _, data in ancillary:
            files.frombytes(data)
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(tell, str(pid).encode())
                os._exit(0)
            caller.close()
            become(json.loads(request), files, (told, tell))
            return
        os.waitpid(between, 0)
        caller.sendall(os.read(told, 100))
        for descriptor in (*files, told, tell):
            os.close(descriptor)


def become(request: dict[str, Any], files: "array.array[int]", unwanted: tuple[int, ...]) -> None:
    """Become as the command's own interpreter would be: its files, environment and arguments."""
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
    for descriptor in (*files, *unwanted):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv = ["kproxy", *request["arguments"]]
    for name, module in list(sys.modules.items()):
        if name.startswith("kproxy."):
            for value in vars(module).values():
                if isinstance(value, random.Random):
                    value.seed()


if __name__ == "__main__":
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        cli.get_command(None, name)  # type: ignore[arg-type]
    load_common(RANGES)  # each server's start does the same
    gc.collect()
    gc.freeze()
    answering(socket.socket(fileno=int(sys.argv[1])))
    main()
