"""Fixtures shared by all tests."""

import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from kproxy.virtual import producers
from tests import marks
from tests.harness import Served, served
from tests.marks import pytest_runtest_protocol
from tests.real_kafka import RunningKafka
from tests.running import cpu
from tests.running.cpu import pytest_configure
from tests.running.order import scope_of, sort_longest_first
from tests.running.run import Sites, kafka_of_run, pytest_sessionfinish
from tests.running.timeouts import (  # fmt: skip
    pytest_runtest_call,
    pytest_runtest_setup,
    pytest_runtest_teardown,
)
from tests.wire import Wire
from tests.workers import SIDE_BY_SIDE, Workers

__all__ = [
    "pytest_configure", "pytest_runtest_call", "pytest_runtest_protocol", "pytest_runtest_setup",
    "pytest_runtest_teardown", "pytest_sessionfinish",
]  # fmt: skip
_TESTS = Path(__file__).parent
settings.register_profile("unhurried", deadline=None)  # a busy machine proves nothing
settings.register_profile("steady", settings.get_profile("unhurried"), derandomize=True)
# `make test` is the same each time.
settings.load_profile("steady" if os.environ.get("PYTHONHASHSEED") == "0" else "unhurried")
_QUICK = (
    "--group-initial-rebalance-delay-ms", "200",
    "--transaction-abort-timed-out-transaction-cleanup-interval-ms", "500",
)  # fmt: skip
"""The flags by which no test waits three seconds for more members, or ten for transactions."""


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Import from the end what others import from the beginning, where the tests are not compiled.

    Processes side by side then rewrite the asserts of half of the files each, not of all.
    """
    odd = SIDE_BY_SIDE[-1:] in tuple("13579")
    if isinstance(collector, pytest.Session) and odd and not _chosen(collector.config):
        for path in sorted(_TESTS.rglob("test_*.py"), reverse=True):
            with suppress(Exception):  # its collection tells
                import_module(".".join(path.relative_to(_TESTS.parent).with_suffix("").parts))


def _chosen(config: pytest.Config) -> bool:
    return list(config.args) != [str(_TESTS)] and config.args != config.getini("testpaths")


def pytest_addoption(parser: pytest.Parser) -> None:
    cpu.pytest_addoption(parser)
    parser.addoption("--shuffle", type=int, metavar="SEED", help="order of files by this seed")
    parser.addoption("--record", action="store_true", help="record a Kafka's answers anew")
    parser.addoption("--live", action="store_true", help="compare those recorded with a Kafka's")


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by where they are. Side by side (`-n`) the longest begin, or --shuffle says."""
    marks.mark(items)
    seed = config.getoption("--shuffle")
    if seed is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        place = {path: number for number, path in enumerate(files)}
        items.sort(key=lambda item: place[item.path])
    elif SIDE_BY_SIDE:
        sort_longest_first(items)


class ByFile(LoadScopeScheduling):
    """Side by side a file stays on one process, and so do all files that need Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFile(config, log)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Return the backend that runs `async def` tests."""
    return "asyncio"


@pytest.fixture(scope="session")
def sites() -> Iterator[Sites]:
    """Yield running kproxys that modules share."""
    running = Sites()
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, sites: Sites, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Yield one served kproxy, which modules share; each test takes names of its own.

    A module that looks at all there is, or does harm, says OWN_SERVER = True.
    """

    def start() -> AbstractContextManager[Served]:
        return served(tmp_path_factory.mktemp("data"), *_QUICK)

    with start() if _own(request) else sites.lent("embedded", start) as running:
        yield running


def _own(request: pytest.FixtureRequest) -> bool:
    return getattr(request.module, "OWN_SERVER", False)


@pytest.fixture(scope="module")
def one_producer_inline() -> Iterator[None]:
    """Make producers come and go between a partition's row and rows of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "PRODUCERS_INLINE", 1)
        yield


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> RunningKafka:
    """Return one real Kafka for the whole run; tests that stop it make their own."""
    return kafka_of_run(tmp_path_factory)


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def site(
    request: pytest.FixtureRequest, sites: Sites, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served | Workers]:
    """Yield the same queues twice: on storage of their own, and as two workers on a real Kafka.

    Modules share them, but those with FLAGS of their own or OWN_SERVER = True.
    """
    flags = (*_QUICK, *getattr(request.module, "FLAGS", ()))

    def start() -> AbstractContextManager[Served | Workers]:
        directory = tmp_path_factory.mktemp("data")
        if request.param == "embedded":
            return served(directory, *flags)
        return Workers(request.getfixturevalue("kafka"), directory, *flags, count=2).running()

    own = flags != _QUICK or _own(request)
    with start() if own else sites.lent(request.param, start) as running:
        yield running


@pytest.fixture
def wire(server: Served) -> Iterator[Wire]:
    with Wire(server.host, server.port) as client:
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """Return a queue name of the test's own: tests of all modules share servers.

    Comparisons with Kafka have their test's name in what is recorded.
    """
    name: str = request.node.name
    if "kafka" not in request.path.parts:
        name = f"{request.path.stem.removeprefix('test_')}.{name}"
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)[:200]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"
