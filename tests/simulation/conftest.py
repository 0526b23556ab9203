"""Settings that all simulations share."""

from collections.abc import Iterator

import pytest

from kproxy.virtual import producers


@pytest.fixture(autouse=True, scope="session")
def one_producer_inline() -> Iterator[None]:
    """So that producers come and go between the partition's row and their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "PRODUCERS_INLINE", 1)
        yield
