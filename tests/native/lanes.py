"""Both lanes, for the tests of what either does."""

import pytest

from kproxy import native
from kproxy.native import Lane

LANES = ("python",) if native._FOUND.core is None else ("python", "native")


@pytest.fixture(params=LANES)
def each_lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have a test run with each lane, whatever its workers' settings say."""
    lane: str = request.param
    if lane == "python":
        monkeypatch.setattr(native, "_FOUND", Lane(None, "a test goes without"))
    native.choose("auto")
    return lane
