"""What a seed's cluster, disks and clocks are like."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

_CLOCKS_OFF_S = 5
_CLOCKS_FAR_OFF_S = 15 * 60
CLOCKS_FAR_OFF = 0.3
"""The share of seeds whose clocks are off by many minutes."""
TROUBLE_S = 25.0


class Ending(Enum):
    """What happens when the trouble is over."""

    REBUILT = "all workers begin again, with empty disks"
    MOVED = "shards are given out once more"
    LEFT = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Chances are those of each time that it can happen, while there is trouble."""

    disk_lost: float = 0.2
    sent_twice: float = 0.0
    unsaid: float = 0.03
    moved_every_s: float = 5.0
    rows_at_once: int = 300
    rows_slow: bool = False
    power_fails_at_s: float | None = None
    ending: Ending = Ending.MOVED
    clocks_off_ms: Mapping[str, int] = field(default_factory=dict)


def conditions_of(seed: int, workers: list[str]) -> Conditions:
    """Drawn apart from what happens: another chance here leaves the rest as it is."""
    rng = random.Random(f"conditions {seed}")
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
