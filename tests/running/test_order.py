"""The order in which files are handed out side by side."""

from pathlib import Path

from tests.harness import ROOT
from tests.running.order import LONGEST, folder_of, read, scope_of, write


def test_list_keeps_what_did_not_run_and_leaves_out_what_is_quick(tmp_path: Path) -> None:
    path = tmp_path / "longest.txt"
    write(path, {"tests/a/test_a.py": 30.4, "tests/test_b.py": 5.0})
    write(path, {"tests/test_b.py": 40.2, "tests/test_c.py": 0.3})
    assert path.read_text() == "40 tests/test_b.py\n30 tests/a/test_a.py\n"
    assert read(path) == {"tests/test_b.py": 40.0, "tests/a/test_a.py": 30.0}


def test_files_in_the_list_are_there() -> None:
    paths = [scope.partition("::")[0] for scope in read(LONGEST)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_scopes_of_a_folder() -> None:
    assert scope_of("tests/faults/test_kill.py::test_x[a]") == "tests/faults/test_kill.py"
    assert scope_of("tests/spark/test_jobs.py::test_x") == "tests/spark"
    assert scope_of("tests/project/test_readme.py::test_x[a/b.md-8]").endswith("::test_x[a/b.md-8]")
    scopes = ("tests/faults/test_kill.py", "tests/spark", "tests/test_x.py::test_x[a/b]", "(end)")
    assert [folder_of(scope) for scope in scopes] == ["faults", "spark", "(top)", "(end)"]
