"""All limits of kproxy are registered, and simulations hold where all are tiny."""

from pathlib import Path

import pytest

from tests.limits import FIXED, REGISTERED, TINY, limits
from tests.simulation.every import SIMULATIONS, prepared
from tests.simulation.seeds import seeds, sums


def test_each_limit_is_registered() -> None:
    """A new one belongs into `TINY` of tests/limits.py, or into `FIXED` with a reason."""
    found = set(limits())
    assert not sorted(found - REGISTERED), "limits that are not registered"
    assert not sorted(REGISTERED - found), "registered limits that are no more"
    assert not TINY.keys() & {name for names in FIXED.values() for name in names.split()}


FEW = {"crashes", "shared-log", "workers", "workers-transactions"}
"""Simulations that have no limits of their own, or cross them in their own tests."""


@seeds(3, long=200, each=20)
@pytest.mark.parametrize("name", sorted(SIMULATIONS.keys() - FEW))
def test_simulations_hold_where_limits_are_tiny(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, seeds: range
) -> None:
    sums(prepared(f"{name}-tiny", monkeypatch, tmp_path), seeds)
