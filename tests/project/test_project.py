"""The version, the licence and what the package says of itself."""

import ast
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kproxy import __version__
from tests.harness import ROOT

SOURCES = ("kproxy", "tests", "benchmarks", "spark_examples", "examples")
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_newest_release_of_the_changelog_is_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", text, re.M)
    assert released[0] == __version__
    assert released == sorted(released, key=lambda one: [*map(int, one.split("."))], reverse=True)
    assert "## [Unreleased]" in text


def test_the_licence_is_apaches() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert {"authors", "classifiers", "keywords"} <= project.keys()


def test_a_folder_has_at_most_20_python_files() -> None:
    """A folder that has more is divided by families."""
    files = (path for top in SOURCES for path in (ROOT / top).rglob("*.py"))
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in files)
    assert not {folder for folder, count in counts.items() if count > 20}


def test_a_file_of_the_package_has_at_most_400_lines() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in _package()}
    assert not {path.name: length for path, length in lengths.items() if length > 400}


def test_a_function_has_at_most_60_lines() -> None:
    files = {path: ast.parse(path.read_text()) for path in _package()}
    assert not {
        f"{path.name}: {node.name}": length
        for path, tree in files.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > 60
    }


def _package() -> Iterator[Path]:
    return (path for top in ("kproxy", "spark_examples") for path in (ROOT / top).rglob("*.py"))
