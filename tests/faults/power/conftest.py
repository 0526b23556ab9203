from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.power.machine import Machine, compiled


@pytest.fixture(scope="package")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def machine(recorder: Path, tmp_path: Path) -> Iterator[Machine]:
    one = Machine(recorder, tmp_path)
    yield one
    one.close()
