"""The cluster, disks and clocks of a seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

_CLOCKS_OFF_S = 5
_CLOCKS_FAR_OFF_S = 15 * 60
_CLOCKS_BIT_OFF_MS = 1000
CLOCKS_FAR_OFF = 0.3
"""The share of seeds whose clocks are off by many minutes."""
TROUBLE_S = 25.0
_SEEDS = 5  # in one of so many the cluster takes envelopes twice


class Ending(Enum):
    """The event that ends the trouble."""

    REBUILT = "all workers begin again, with empty disks"
    MOVED = "shards are given out once more"
    LEFT = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Chances are those of each time that it can happen, while there is trouble."""

    disk_lost: float = 0.2
    sent_twice: float = 0.0
    doubled: float = 0.0  # the cluster takes an envelope, and does not say so in time
    unsaid: float = 0.03
    moved_every_s: float = 5.0
    crashed_every_s: float = 7.0
    moved_at_once: int = 1000
    trouble_s: float = TROUBLE_S
    rows_at_once: int = 300
    rows_slow: bool = False
    power_fails_at_s: float | None = None
    ending: Ending = Ending.MOVED
    slow: float = 0.02
    slow_s: float = 2.0
    requests_late: float = 0.0
    transactions: bool = False
    epochs_worn: bool = False  # few epochs are left of each producer id
    clocks_off_ms: Mapping[str, int] = field(default_factory=dict)


def conditions_of(seed: int, workers: list[str], *, transactions: bool = False) -> Conditions:
    """Draw them apart from events: another chance here leaves the rest as it is."""
    drawn = _conditions(random.Random(f"conditions {seed}"), workers)
    if seed % _SEEDS == 1:
        drawn = replace(drawn, doubled=0.03)
    return _with_transactions(seed, drawn) if transactions else drawn


def _with_transactions(seed: int, drawn: Conditions) -> Conditions:
    """Draw them with rare power cuts: nobody can mend a transaction that the cluster lost.

    By clocks that are far off most transactions end before their time.
    """
    rng = random.Random(f"transactions {seed}")
    if rng.random() < 0.9:
        off = {name: rng.randint(-_CLOCKS_BIT_OFF_MS, _CLOCKS_BIT_OFF_MS)
               for name in drawn.clocks_off_ms}  # fmt: skip
        drawn = replace(drawn, clocks_off_ms=off)
    return replace(
        drawn,
        transactions=True,
        epochs_worn=rng.random() < 0.5,
        slow=rng.choice((0.02, 0.08)),
        slow_s=rng.choice((1.0, 4.0)),
        requests_late=rng.choice((0.0, 0.01)),
        moved_every_s=rng.choice((3.0, 12.0)),
        crashed_every_s=12.0,
        moved_at_once=1,
        trouble_s=40.0,
        power_fails_at_s=drawn.power_fails_at_s if rng.random() < 0.3 else None,
    )


def _conditions(rng: random.Random, workers: list[str]) -> Conditions:
    far = rng.random() < CLOCKS_FAR_OFF
    off_ms = 1000 * (_CLOCKS_FAR_OFF_S if far else _CLOCKS_OFF_S)
    return Conditions(
        disk_lost=rng.choice((0.0, 0.2, 0.8)),
        sent_twice=rng.choice((0.0, 0.3)),
        unsaid=rng.choice((0.03, 0.1)),
        moved_every_s=rng.choice((1.0, 5.0)),
        rows_at_once=rng.choice((2, 10, 300)),
        rows_slow=rng.random() < 0.6,
        power_fails_at_s=rng.uniform(8, 20) if rng.random() < 0.5 else None,
        ending=rng.choice(list(Ending)),
        clocks_off_ms={name: rng.randint(-off_ms, off_ms) for name in workers},
    )
