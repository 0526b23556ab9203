"""Fixtures shared by all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Served, served
from tests.wire import Wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One served kproxy for a module's tests; each test takes names of its own."""
    with served(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def wire(server: Served) -> Iterator[Wire]:
    with Wire(server.host, server.port) as client:
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue name of the test's own."""
    name: str = request.node.name
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)[:200]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"
