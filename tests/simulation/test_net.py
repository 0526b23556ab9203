"""The means that simulations share find what they are there for."""

from typing import Any

import anyio
import pytest

from kproxy.loop.pace import Pace
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.fold import Fold
from kproxy.virtual.types import QueueId
from tests.simulation import virtual_time
from tests.simulation.twice import fold_twice


def test_a_fold_that_reads_past_unwritten_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [CreateQueue(QueueId(bytes([n] * 16)), f"q{n}", 1, {}).envelope() for n in range(100)]
    fold_twice(log)
    apply = Fold.apply

    def counted(self: Any, *args: Any) -> Any:
        self.state.put(b"zz", b"%d" % len(list(self.state.kv.scan(b"", b"\xff"))))
        return apply(self, *args)

    monkeypatch.setattr(Fold, "apply", counted)
    with pytest.raises(AssertionError, match="rows depend on when they are written"):
        fold_twice(log)


def test_tasks_that_wake_in_one_turn_go_in_any_order() -> None:
    def order(seed: int | None) -> str:
        found: list[str] = []

        async def main() -> None:
            go = anyio.Event()

            async def wait(name: str) -> None:
                await go.wait()
                found.append(name)

            async with anyio.create_task_group() as tasks:
                for name in "abc":
                    tasks.start_soon(wait, name)
                await anyio.sleep(0.1)
                go.set()

        virtual_time.run(main, seed or 0, shuffled=seed is not None)
        return "".join(found)

    assert order(None) == "abc"
    assert order(1) == order(1)
    assert len({order(seed) for seed in range(20)}) > 3


def test_work_is_cut_into_the_same_slices_each_time() -> None:
    """FAULT: it was by the real clock, so what a seed found was not found again."""

    def slices(seed: int) -> list[bool]:
        found: list[bool] = []

        async def main() -> None:
            one = Pace()
            for _ in range(20):
                found.append(one.due)
                await one.step()

        virtual_time.run(main, seed)
        return found

    assert slices(1) == slices(1) != slices(2)
    assert any(slices(1))
