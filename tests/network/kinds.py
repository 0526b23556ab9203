"""The faults of networks, done to some relays at once, and how long a load stands still."""

import random
import time
from collections.abc import Callable, Sequence

from tests.harness import eventually
from tests.network.relay import BOTH, Relay, Way
from tests.on_kafka.load import Load

HEALED_S = 15
"""The seconds after the end of a fault by which everything goes on."""
_HEAD_BYTES = 60


def _cut(way: Way) -> Callable[[Relay, random.Random], None]:
    def cut(relay: Relay, rng: random.Random) -> None:
        for _ in range(6):
            relay.cut(way, rng.randrange(1, _HEAD_BYTES))

    return cut


KINDS: dict[str, Callable[[Relay, random.Random], None]] = {
    "late": lambda relay, _: relay.delay(0.2),
    "slow": lambda relay, _: relay.throttle(10_000),
    "read, not write": lambda relay, _: relay.drop(Way.THERE),
    "write, not read": lambda relay, _: relay.drop(Way.BACK),
    "lost both ways": lambda relay, _: relay.drop(*BOTH),
    "forgotten": lambda relay, _: relay.forget(),
    "refused": lambda relay, _: relay.refuse(),
    "cut in requests": _cut(Way.THERE),
    "cut in answers": _cut(Way.BACK),
}
"""The faults of a connection by a worker's view of what it reaches through the relay."""


def go_through(
    load: Load, relays: Sequence[Relay], kinds: Sequence[str], hold_s: float, rng: random.Random,
    *, healed_s: float = HEALED_S,
) -> None:  # fmt: skip
    """Do each kind to the relays under a load, heal it, and see that every queue goes on."""
    load.wait_for(len(load.queues) * 20)
    for kind in kinds:
        load.longest_pause_s()
        for relay in relays:
            KINDS[kind](relay, rng)
        time.sleep(hold_s)
        for relay in relays:
            relay.heal()
        began = time.monotonic()
        before = {queue: len(load.acknowledged[queue]) for queue in load.queues}
        eventually(
            lambda before=before: all(  # type: ignore[misc]
                len(load.acknowledged[queue]) > count + 5 for queue, count in before.items()
            ),
            healed_s,
        )
        after_s, longest_s = time.monotonic() - began, load.longest_pause_s()
        print(f"{kind}: held {hold_s} s, longest stall {longest_s:.1f} s, "  # noqa: T201
              f"all went on {after_s:.1f} s after")  # fmt: skip
