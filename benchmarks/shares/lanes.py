"""The cost of lanes: a share group with 10,000 of them beside the same group without.

    python -m benchmarks.shares.lanes [--quick] [--rounds N]

prints a table. Records of 100 bytes with random keys, in batches of 500, are acquired and accepted
by members whose requests are encoded by hand, embedded without fsync. `stored one by one`: a batch
has one record, as producers write that do not wait. Then: in which answer one record of another
lane is that comes behind a million of one; how long 1,000 quiet keys wait, p99, while one floods;
and the memory of a million records of lookahead, over 10,000 lanes and over a million.
"""

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import loads
from benchmarks.servers import Server, embedded
from benchmarks.shares.client import Place, _produced, drive, members, place
from kproxy.protocol.api_keys import ApiKey
from kproxy.shares.lanes.index import LaneIndex, Turns
from tests.wire import keyed, produce_values

_LANES, _EACH, _MANY = 10_000, 500, 1_000_000
_QUIET, _FLOOD_S = 1000, 20.0
_TARGETS = "≥ 0.7", "≤ 32 MB", "the next", "< 1 s"
_VALUE = b"x" * 90


def fill(at: Place, keys: list[bytes], each: int) -> None:
    """Produce records with these keys, some requests under way at a time."""
    under_way: deque[int] = deque()
    with at.wire() as wire:
        for first in range(0, len(keys), each):
            sent = keyed(*[(key, _VALUE) for key in keys[first : first + each]])
            under_way.append(wire.send(ApiKey.PRODUCE, 9, produce_values(at.queue, sent)))
            if len(under_way) == 5:
                _produced(wire, under_way.popleft())
        while under_way:
            _produced(wire, under_way.popleft())


def set_lanes(at: Place, group: str, **settings: str) -> None:
    configs = [{"name": f"kproxy.share.lane{name.replace('_', '.')}", "config_operation": 0,
                "value": value} for name, value in settings.items()]  # fmt: skip
    resource = {"resource_type": 32, "resource_name": group, "configs": configs}
    with at.wire() as wire:
        values = {"resources": [resource], "validate_only": False}
        answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)
        assert answer.responses[0].error_code == 0, answer


class Bench:
    def __init__(self, server: Server, records: int) -> None:
        self.server, self.records = server, records
        self._groups = 0

    def queue(self, name: str) -> Place:
        loads.make_queue(self.server.address, name)
        return place(self.server.address, name)

    def rate(self, at: Place, records: int, **lanes: str) -> tuple[float, float]:
        """Return records a second, and µs of the server's CPU a record."""
        self._groups += 1
        group = f"lanes-{self._groups}"
        set_lanes(at, group, **lanes)
        with members(at, group, 10, _EACH) as some:
            before = self.server.cpu()
            seconds = drive(some, records)
            return records / seconds, (self.server.cpu() - before) / records * 1e6

    def answers_until_quiet(self, records: int) -> int:
        """Return in which answer the one record of B is that comes behind so many of A, once these
        were looked at."""
        at = self.queue("lanes-quiet")
        fill(at, [b"A"] * records, _EACH)
        set_lanes(at, "quiet", **{"": "key", "_lookahead": str(10 * _MANY)})
        with members(at, "quiet", 1, _EACH) as (member,):
            held: list[tuple[int, int]] = []
            for _ in range(4):  # each of them looks at all that was there
                member.fetch(held)
                held = member.acquired()
            fill(at, [b"B"], 1)
            for answer in range(1, 1000):
                member.fetch(held)
                held = member.acquired()
                if any(first <= records <= last for first, last in held):
                    return answer
        return -1

    def quiet_p99(self, seconds: float) -> float:
        """Return p99 in ms from Produce to delivery of quiet keys, while one key floods."""
        at = self.queue("lanes-flood")
        set_lanes(at, "flood", **{"": "key"})
        ended, sent, waits = threading.Event(), dict[int, float](), list[float]()

        def flood() -> None:
            while not ended.is_set():
                fill(at, [b"A"] * 5000, _EACH)

        def quiet() -> None:
            with at.wire() as wire:
                number = 0
                while not ended.is_set():
                    one = keyed((b"q%d" % (number % _QUIET), _VALUE))
                    began = time.perf_counter()
                    answer = wire.call(ApiKey.PRODUCE, 9, produce_values(at.queue, one))
                    part = answer.responses[0].partition_responses[0]
                    sent[part.base_offset] = began
                    number += 1
                    time.sleep(0.005)

        threads = [threading.Thread(target=work) for work in (flood, quiet)]
        with members(at, "flood", 1, _EACH) as (member,):
            for thread in threads:
                thread.start()
            until, held = time.perf_counter() + seconds, list[tuple[int, int]]()
            while time.perf_counter() < until:
                member.fetch(held)
                held = member.acquired()
                now = time.perf_counter()
                for first, last in held:
                    known = [offset for offset in range(first, last + 1) if offset in sent]
                    waits += [now - sent.pop(offset) for offset in known]
            ended.set()
            for thread in threads:
                thread.join()
        return statistics.quantiles(waits, n=100)[98] * 1000 if len(waits) > 100 else -1.0


def lookahead_mb(lanes: int, records: int) -> float:
    """Return the memory of so many records of lookahead, a byte of state each among it."""
    rng = random.Random(1)
    index = LaneIndex(0, Turns(), rng.getrandbits(64))
    hashes = [rng.getrandbits(64) for _ in range(lanes)]
    for first in range(0, records, 10_000):
        some = range(first, first + 10_000)
        index.add(some, [hashes[at % lanes] for at in some])
    return (index.size + records) / 1e6


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few records, in a minute")
    parser.add_argument("--rounds", type=int, default=3, help="medians are of these")
    parser.add_argument("--records", type=int, default=500_000, help="so many of each kind")
    arguments = parser.parse_args()
    records, rounds = (20_000, 1) if arguments.quick else (arguments.records, arguments.rounds)
    table = Table("", "without", "with lanes", "ratio", "CPU of a record, µs", "asked")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kproxy-bench-")))
        bench = Bench(stack.enter_context(embedded(directory, "never")), records)
        rng = random.Random(7)
        keys = [b"key-%d" % rng.randrange(_LANES) for _ in range(records)]
        for name, each, count in (("ten members, by 500", _EACH, records),
                                  ("stored one by one", 1, records // 5)):  # fmt: skip
            at = bench.queue(f"lanes-{each}")
            fill(at, keys[:count], each)
            found = [
                (bench.rate(at, count, **{"": "none"}),
                 bench.rate(at, count, **{"": "key"}),
                 bench.rate(at, count, **{"": "key", "_in_flight": "1"}))
                for _ in range(rounds)
            ]  # fmt: skip
            for column, what in ((1, "turns"), (2, "in order")):
                plain = statistics.median(one[0][0] for one in found)
                rate = statistics.median(one[column][0] for one in found)
                cpu = statistics.median(one[column][1] for one in found)
                before = statistics.median(one[0][1] for one in found)
                table.add_row(
                    f"{name}, {what}", f"{plain:,.0f}/s", f"{rate:,.0f}/s", f"{rate / plain:.2g}",
                    f"{before:.3g} → {cpu:.3g}", _TARGETS[0],
                )  # fmt: skip
                print(name, what, plain, rate, before, cpu, file=sys.stderr)  # noqa: T201
        many = 20_000 if arguments.quick else _MANY
        answer = bench.answers_until_quiet(many)
        table.add_row(f"one of B behind {many:,} of A", "", f"answer {answer}", "", "", _TARGETS[2])
        p99 = bench.quiet_p99(5.0 if arguments.quick else _FLOOD_S)
        table.add_row("1,000 quiet keys, p99", "", f"{p99:.0f} ms", "", "", _TARGETS[3])
    for lanes in (_LANES, _MANY):
        size = lookahead_mb(lanes, _MANY)
        table.add_row(f"lookahead, {lanes:,} lanes", "", f"{size:.3g} MB", "", "", _TARGETS[1])
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
