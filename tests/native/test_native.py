"""The code that is written twice, how much of it there is, and which lane serves."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kproxy import native
from kproxy.native import Lane
from tests.fakes import memory_worker
from tests.harness import ROOT
from tests.native.twins import COMMAND, NOTED, twins

CORE = sorted((ROOT / "core" / "src").glob("*.rs"))
LINES_MAX = 1100


def test_python_of_what_is_written_twice_is_as_the_rust_was_written_after() -> None:
    noted = json.loads(NOTED.read_text())
    changed = sorted(name for name, _ in noted.items() ^ twins().items())
    assert not changed, f"{changed}: have core/src do the same, then run `{COMMAND}`"


def test_there_is_little_of_it_and_nothing_unsafe() -> None:
    text = "".join(path.read_text() for path in CORE)
    assert text.count("\n") <= LINES_MAX
    assert "#![forbid(unsafe_code)]" in (ROOT / "core" / "src" / "lib.rs").read_text()


def test_versions_are_the_same() -> None:
    said = re.search(r"VERSION: u32 = (\d+);", (ROOT / "core" / "src" / "lib.rs").read_text())
    assert said is not None
    assert int(said[1]) == native.VERSION


@pytest.mark.parametrize(
    ("core", "reason"),
    [(None, "it was not built"), (SimpleNamespace(VERSION=0), "it was built as version 0, not 1")],
)
def test_core_that_is_not_there_or_another_is_not_asked(
    core: SimpleNamespace | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kproxy

    monkeypatch.setitem(sys.modules, "kproxy._core", core)  # type: ignore[arg-type]
    monkeypatch.setattr(kproxy, "_core", core, raising=False)
    if core is None:
        monkeypatch.delattr(kproxy, "_core")
    found = native._found()
    assert (found.core, found.name) == (None, "python")
    assert found.reason.startswith(reason)


def test_setting_chooses_the_lane(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    core = SimpleNamespace(header_bytes=lambda count, data: [data])
    monkeypatch.setattr(native, "_FOUND", Lane(core))
    assert memory_worker().lane.name == "native"
    assert native.header_bytes(1, b"x") == [b"x"]
    assert memory_worker(native="off").lane == (None, "native is off")
    assert native.header_bytes(1, b"x") is None


def test_kernel_that_panics_leaves_its_work_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*of: object) -> None:
        raise RuntimeError("a kernel has panicked")

    core = SimpleNamespace(header_bytes=panics, gather=panics)
    monkeypatch.setattr(native, "_FOUND", Lane(core))
    native.choose("auto")
    assert native.header_bytes(1, b"x") is None
    bounds = native.Bounds(1, 0, 1, True, False, (1, 1, 1, 1, 1, 1, 1))
    assert native.gather([], (b"a", []), bounds, "in", "lost") is None
