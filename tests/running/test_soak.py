"""Fresh seeds: what fails is shown, the others go on; conditions that none reaches are missed."""

import multiprocessing
from typing import Any

import pytest

from tests.running.soak import ENOUGH, Batch, command, run, tables, totals
from tests.simulation import conditions, every
from tests.simulation.every import SIMULATIONS


def test_each_simulation_says_what_it_reaches() -> None:
    assert SIMULATIONS.keys() == conditions.REACHED.keys()


def test_a_seed_that_fails_is_shown_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulation(seed: int) -> dict[str, int]:
        assert seed != 6, "a fault"
        return {"crash": 2}

    monkeypatch.setitem(every.SIMULATIONS, "routes", lambda patch, directory: simulation)
    heard, out = multiprocessing.Pipe(duplex=False)
    assert run("routes", 5, 3, 60.0, out) == 1
    out.close()
    said: list[Any] = [heard.recv() for _ in range(6)]
    assert said[::2] == [5, 6, 7]
    assert [reached for _, reached, _ in said[1::2]] == [{"crash": 2}, {}, {"crash": 2}]
    assert ["a fault" in fault for *_, fault in said[1::2]] == [False, True, False]
    assert command("routes", 6).endswith("-m tests.running.soak --seed 6 routes")


def test_a_condition_that_no_seed_reaches_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.running.soak.REACHED", {"routes": ("crash", "takeover")})
    batch = Batch(simulation="routes", first=1, seeds=ENOUGH - 1, reached={"crash": 3})
    few = totals([batch])["routes"]
    enough = totals([batch, Batch(simulation="routes", first=900, seeds=1, failed=[900])])
    assert few.missing("routes") == []
    assert enough["routes"].missing("routes") == ["takeover"]
    page = "\n".join(tables(enough))
    assert f"| routes | {ENOUGH} | **1** |" in page
    assert "| routes | crash 3 · **takeover 0** |" in page
