"""CPU of one connection: Produce requests through `Connection`, without a socket or a disk.

    python -m benchmarks.connection [--requests N] [--rules N] [--queues N]

prints the microseconds of CPU that a request takes, the least of several rounds. To compare two
versions of kproxy, run it alternately in both trees. With `--rules` rounds without an authorizer
and with that many access rules of this client take turns, half of them by prefix.
"""

import argparse
import asyncio
import time
from itertools import cycle
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from kproxy.security.acls import CLUSTER_NAME, Binding, Effect, Op, Pattern, Resource
from kproxy.security.peer import ANONYMOUS
from kproxy.server.connection import Connection
from kproxy.worker.worker import Worker
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
    """A limiter that lets every connection in."""

    def register(self, connection: Connection) -> None: ...

    def unregister(self, connection: Connection) -> None: ...


def _rule(name: str, pattern: Pattern, op: Op, kind: Resource = Resource.TOPIC) -> Binding:
    return Binding(kind, name, pattern, ANONYMOUS, "*", op, Effect.ALLOW)


def _ruled(rules: int) -> Worker:
    """Return a worker with so many rules: the client may write to `q-N` by one of them."""
    worker = memory_worker(authorizer="acl")
    for number in range(rules - 2):
        pattern = Pattern.PREFIXED if number % 2 else Pattern.LITERAL
        worker.security.acls.add(_rule(f"other-{number}", pattern, Op.READ))
    worker.security.acls.add(_rule("q-", Pattern.PREFIXED, Op.WRITE))
    worker.security.acls.add(_rule(CLUSTER_NAME, Pattern.LITERAL, Op.CREATE, Resource.CLUSTER))
    worker.security.generation += 1
    return worker


async def _round(requests: int, queues: int, rules: int = 0) -> float:
    """Return microseconds of CPU for each request."""
    worker = _ruled(rules) if rules else memory_worker()
    connection, transport = Connection(worker, Everybody()), NoSocket()
    connection.connection_made(transport)
    frames = [
        encode_request(ApiKey.PRODUCE, 9, 1, produce_values(f"q-{number}", batch(b"x" * 100)))
        * _AT_ONCE
        for number in range(queues)
    ]
    for data in frames:  # there they are made
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    begin = time.process_time()
    for _, data in zip(range(requests // _AT_ONCE), cycle(frames), strict=False):
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    taken = time.process_time() - begin
    assert transport.answers >= requests // _AT_ONCE
    assert not rules or not worker.authorizer.permits(connection.peer).log.refusals
    return taken / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rules", type=int, default=0)
    parser.add_argument("--queues", type=int, default=1, help="written to in turn")
    arguments = parser.parse_args()
    taken: dict[int, list[float]] = {0: [], arguments.rules: []}
    for _ in range(arguments.rounds):
        for rules, times in taken.items():
            times.append(asyncio.run(_round(arguments.requests, arguments.queues, rules)))
    for rules, times in taken.items():
        print(f"{min(times):.2f} us a request" + (f", {rules} rules" if rules else ""))  # noqa: T201


if __name__ == "__main__":
    main()
