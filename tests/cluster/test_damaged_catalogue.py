from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kproxy.cluster.node import _DAMAGED, _catalogue_rows


@pytest.mark.parametrize("what", ["CURRENT", "MANIFEST-*", _DAMAGED])
def test_damaged_rows_of_the_catalogue_are_read_again(tmp_path: Path, what: str) -> None:
    """FAULT: the worker did not start any more, though the topic has all that its rows had."""
    directory = tmp_path / "queues"
    rows = _catalogue_rows(directory, 1 << 20)
    rows.write({b"a": b"1"})
    rows.flush()
    rows.close()
    rows = _catalogue_rows(directory, 1 << 20)
    assert rows.get(b"a") == b"1"
    rows.close()
    if what == _DAMAGED:
        (directory / what).touch()
    else:
        next(directory.glob(what)).write_bytes(bytes(20))
    with capture_logs() as logs:
        rows = _catalogue_rows(directory, 1 << 20)
    assert rows.get(b"a") is None
    assert [one["event"] for one in logs] == ["catalogue_damaged"] * (what != _DAMAGED)
    rows.close()
