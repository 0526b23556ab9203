"""No test here may block the event loop."""

import pytest

from tests.running.blocking import unblocked

__all__ = ["unblocked"]


@pytest.fixture(autouse=True)
def _unblocked(unblocked: None) -> None:
    pass
