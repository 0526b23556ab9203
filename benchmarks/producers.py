"""The cost of many idempotent producers of one partition, and a check that each of them is known.

    python -m benchmarks.producers [--producers N] [--on-kafka] [--appends N]

Each producer writes a batch, sends it again, and then leaves one out: none may be stored again, no
gap may be taken; and so after a restart, with `--on-kafka` after one on an empty disk. Beside it,
µs of the server's CPU for an append to a partition of 100 producers and to that of all, in turns,
and the memory that they take. Raises AssertionError where one is not known.
"""

import argparse
import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import mean

from benchmarks.servers import Server, embedded, kafka, on_kafka
from kproxy.common.errors import Code
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from tests.harness import eventually
from tests.wire import Wire, batch, produce_values

Serve = Callable[[], AbstractContextManager[Server]]
_FEW, _MANY = "few", "many"
_IN_FLIGHT = 20
_VERSION = 8  # a version whose answer has fixed places
_ANSWER = struct.Struct(">hq")
_ANSWER_AT = 4 + 4 + 2 + 4 + 4  # and the queue's name
_ROUNDS = 9
_FEW_PRODUCERS = 100


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Load:
    """One connection, with many requests on their way."""

    def __init__(self, server: Server) -> None:
        host, port = server.address.split(":")
        self._wire = Wire(host, int(port), 60)

    def send(self, queue: str, batches: Iterable[bytes]) -> Iterator[tuple[int, int]]:
        """Yield (code, base offset) for each."""
        waiting = 0
        frame = b""
        for data in batches:
            if not frame:
                frame = encode_request(ApiKey.PRODUCE, _VERSION, 1, produce_values(queue, data))
                head, tail = frame.split(data)
            self._wire.socket.sendall(head + data + tail)
            waiting += 1
            if waiting == _IN_FLIGHT:
                yield self._answer(len(queue))
                waiting -= 1
        for _ in range(waiting):
            yield self._answer(len(queue))

    def _answer(self, name: int) -> tuple[int, int]:
        code, offset = _ANSWER.unpack_from(self._wire.receive_frame(), _ANSWER_AT + name)
        return code, offset


def _batches(producers: Iterable[int], sequence: dict[int, int], ahead: int = 0) -> Iterator[bytes]:
    """Yield the next batch of each producer, or with `ahead` another one, which is not noted."""
    for pid in producers:
        at = sequence.get(pid, 0)
        yield batch(b"a value of a device", producer_id=pid, epoch=0, sequence=at + ahead)
        if not ahead:
            sequence[pid] = at + 1


def _known(load: Load, producers: int, sequence: dict[int, int], offsets: dict[int, int]) -> None:
    """Check that each is told where its last batch lies, and that it has left one out."""
    again = load.send(_MANY, _batches(range(producers), sequence, -1))
    found = [offset if not code else -1 for code, offset in again]
    wrong = sum(offset != offsets[pid] for pid, offset in enumerate(found))
    gaps = [code for code, _ in load.send(_MANY, _batches(range(producers), sequence, 3))]
    taken = sum(code != Code.OUT_OF_ORDER_SEQUENCE_NUMBER for code in gaps)
    _say(f"  {producers} producers: {wrong} stored again, {taken} gaps taken")
    assert not wrong
    assert not taken


def _cost(server: Server, load: Load, producers: int, sequences: list[dict[int, int]],
          offsets: dict[int, int], appends: int) -> None:  # fmt: skip
    """Measure in turns, of producers at random: other work of the machine meets both alike."""
    spent: dict[str, list[float]] = {_FEW: [], _MANY: []}
    rng = random.Random(1)
    for _ in range(_ROUNDS):
        for queue, count, sequence in ((_FEW, _FEW_PRODUCERS, sequences[0]),
                                       (_MANY, producers, sequences[1])):  # fmt: skip
            chosen = [rng.randrange(count) for _ in range(appends)]
            before = server.cpu()
            answers = list(load.send(queue, _batches(chosen, sequence)))
            spent[queue].append((server.cpu() - before) / appends * 1e6)
            assert not any(code for code, _ in answers)
            if queue == _MANY:
                offsets |= {pid: at for pid, (_, at) in zip(chosen, answers, strict=True)}
    few, many = mean(spent[_FEW]), mean(spent[_MANY])
    _say(f"  an append: {few:.1f} us of {_FEW_PRODUCERS} producers, {many:.1f} us of {producers};"
          f" {many / few:.2f} times")  # fmt: skip


def measure(serve: Serve, wipe: Callable[[], None], producers: int, appends: int) -> None:
    few: dict[int, int] = {}
    many: dict[int, int] = {}
    offsets: dict[int, int] = {}
    with serve() as server:
        load = Load(server)
        assert not any(code for code, _ in load.send(_FEW, _batches(range(_FEW_PRODUCERS), few)))
        began = server.rss_mb()
        for first in range(0, producers, 10_000):
            some = range(first, min(producers, first + 10_000))
            answers = list(load.send(_MANY, _batches(some, many)))
            assert not any(code for code, _ in answers)
            offsets |= {pid: at for pid, (_, at) in zip(some, answers, strict=True)}
            if (some.stop & (some.stop - 1)) == 0 or some.stop % 50_000 == 0:
                _say(f"  {some.stop} producers: {server.rss_mb() - began:+.0f} MB")
        _known(load, producers, many, offsets)
        _cost(server, load, producers, [few, many], offsets, appends)
        _say(f"  in all {server.rss_mb() - began:+.0f} MB")
    wipe()
    with serve() as server:
        eventually(lambda: _answers(server), 120)
        load = Load(server)
        _known(load, producers, many, offsets)
        _say(f"  after a restart {server.rss_mb():.0f} MB resident, {began:.0f} at first")


def _answers(server: Server) -> bool:
    with Wire(*_address(server), 60) as wire:
        return not wire.list_offset(_MANY, -1).error_code


def _address(server: Server) -> tuple[str, int]:
    host, port = server.address.split(":")
    return host, int(port)


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="producers-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--producers", type=int, default=100_000)
    parser.add_argument("--appends", type=int, default=5000)
    parser.add_argument("--on-kafka", action="store_true")
    asked = parser.parse_args()
    with _directory() as directory:
        if not asked.on_kafka:
            _say("embedded, no fsync")
            own = directory / "own"
            measure(lambda: embedded(own, "never"), lambda: None, asked.producers, asked.appends)
            return
        with kafka(directory / "broker") as broker:
            copy = directory / "copy"
            _say("on Kafka; the second time on an empty disk")
            measure(lambda: on_kafka(broker, copy, "producers", 1), lambda: shutil.rmtree(copy),
                    asked.producers, asked.appends)  # fmt: skip


if __name__ == "__main__":
    main()
