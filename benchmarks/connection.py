"""CPU of one connection: Produce requests through `Connection`, without a socket or a disk.

    python -m benchmarks.connection [--requests N]

prints the microseconds of CPU that a request takes, the least of several rounds. To compare two
versions of kproxy, run it alternately in both trees.
"""

import argparse
import asyncio
import time
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from kproxy.server.connection import Connection
from tests.fakes import memory_worker
from tests.wire import batch, produce_values

_AT_ONCE = 5  # requests in a turn of the loop, as a Java producer has in flight


class NoSocket(asyncio.Transport):
    """A transport that takes all that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.answers += 1

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Everybody:
    """Lets every connection in."""

    def register(self, connection: Connection) -> bool:
        return True

    def unregister(self, connection: Connection) -> None: ...


async def _round(requests: int) -> float:
    """Microseconds of CPU for each request."""
    connection, transport = Connection(memory_worker(), Everybody()), NoSocket()
    connection.connection_made(transport)
    frame = encode_request(ApiKey.PRODUCE, 9, 1, produce_values("q", batch(b"x" * 100)))
    data = frame * _AT_ONCE
    begin = time.process_time()
    for _ in range(requests // _AT_ONCE):
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    taken = time.process_time() - begin
    assert transport.answers >= requests // _AT_ONCE
    return taken / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    least = min(asyncio.run(_round(arguments.requests)) for _ in range(arguments.rounds))
    print(f"{least:.2f} us a request")  # noqa: T201


if __name__ == "__main__":
    main()
