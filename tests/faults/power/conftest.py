from pathlib import Path

import pytest

from tests.faults.power.machine import compiled


@pytest.fixture(scope="package")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("recorder"))
