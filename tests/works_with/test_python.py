"""Faust, Quix Streams, FastStream, Celery and Bytewax, each by a program in `python`."""

from pathlib import Path

import pytest

from tests.clients.calls import create
from tests.clients.transactions.calls import COMMITTED, values
from tests.workers import Site
from tests.works_with.programs import one_of, python_program

FLAGS = ("--group-initial-rebalance-delay-ms", "200")
Factory = pytest.TempPathFactory


def test_faust(site: Site, queue: str, tmp_path_factory: Factory) -> None:
    create(site.address, queue)
    said = python_program(tmp_path_factory, "faust_counts", one_of(site), queue)
    assert said == {f"k{rest}": sum(range(rest, 100, 3)) for rest in range(3)}


def test_quix_streams(site: Site, queue: str, tmp_path_factory: Factory, tmp_path: Path) -> None:
    create(site.address, queue, f"{queue}-out")
    python_program(tmp_path_factory, "quix_copy", site.address, queue, str(tmp_path))
    found = values(site.address, f"{queue}-out", COMMITTED)
    assert len(found) == 100
    assert b'"sum":1683' in found[99].replace(b" ", b"")


def test_faststream(site: Site, queue: str, tmp_path_factory: Factory) -> None:
    create(site.address, queue, f"{queue}-out")
    said = python_program(tmp_path_factory, "faststream_copy", one_of(site), queue)
    assert said == 2 * sum(range(100))


def test_celery(site: Site, queue: str, tmp_path_factory: Factory) -> None:
    said = python_program(tmp_path_factory, "celery_tasks", one_of(site), queue)
    assert said == list(range(1, 31))


def test_bytewax(site: Site, queue: str, tmp_path_factory: Factory) -> None:
    create(site.address, queue, f"{queue}-out")
    python_program(tmp_path_factory, "bytewax_flow", site.address, queue)
    found = values(site.address, f"{queue}-out", COMMITTED)
    assert found == [b"%d" % (2 * number) for number in range(100)]
