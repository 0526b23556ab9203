"""The benchmark: what it makes of its samples, and that it runs and leaves nothing behind."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from PIL import Image

from benchmarks import report
from benchmarks.figures import FIGURES, samples
from benchmarks.servers import EMBEDDED, KAFKA, ON_KAFKA
from benchmarks.works import FULL, QUICK
from tests.harness import ROOT


def test_table_and_picture(tmp_path: Path) -> None:
    found = samples()
    for key, kafka, worker in (
        ("produce_16k", [100_000, 200_000, 300_000], [90_000, 200_000, 240_000]),
        ("p50", [1.0, 1.2, 1.1], [1.3, 1.9, 1.7]),
    ):
        found[key] = {KAFKA: kafka, ON_KAFKA: worker, EMBEDDED: [2 * v for v in kafka]}
    found["again"] = {ON_KAFKA: [50_000.0], EMBEDDED: [123_456.0]}
    found["cpu_again"] = {ON_KAFKA: [60.0], EMBEDDED: [31.0]}
    found["client_again"] = {ON_KAFKA: [30.0], EMBEDDED: [25.0]}
    found["broker_again"] = {ON_KAFKA: [10.0]}
    report.write(tmp_path, found, QUICK)
    text = (tmp_path / "table.md").read_text()
    rows = text.splitlines()
    assert "200,000 (100,000–300,000) | 200,000 = 0.9 (0.8–1) × ✓ | 400,000 = 2 × ✓" in rows[2]
    assert "1.1 (1–1.2) | 1.7 = Kafka +0.6 ✗ | 2.2 = Kafka +1.1 ✗" in rows[3]
    assert "|  | 50,000, of at most 50,000 | 123,000 ✓ |" in rows[4]
    assert "|  | 60 ✓ | 31 ✗ |" in rows[5]
    assert report.told(report.read(tmp_path)) == text
    assert report.earlier(tmp_path, QUICK) == found
    assert not report.earlier(tmp_path, FULL)  # other sizes are not to be mixed in
    with Image.open(tmp_path / "figures.png") as picture:
        assert picture.width > 1000


def test_the_readmes_have_what_was_measured() -> None:
    """Both tables are those of the results beside the benchmark, of one full run of all works."""
    results = report.read(ROOT / "benchmarks/results")
    readme = (ROOT / "benchmarks/README.md").read_text()
    assert report.told(results) in readme
    assert "(results/figures.png)" in readme
    assert report.short_table(results.samples) in (ROOT / "README.md").read_text()
    assert (ROOT / "benchmarks/results/figures.png").exists()
    assert results.sizes == FULL
    assert set(results.samples) == {figure.key for figure in FIGURES}


@pytest.mark.long
def test_quick_runs_and_leaves_nothing(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    command = [sys.executable, "-m", "benchmarks", "--quick", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "figures.json").read_text())
    assert all(values for servers in told["samples"].values() for values in servers.values())
    assert "rebuild" in told["samples"]
    assert not list(Path(tempfile.gettempdir()).glob("kproxy-bench-*"))
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
