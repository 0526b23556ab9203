"""A fold reads rows with the changes that are not written yet, or one log gives two results."""

import ast
from pathlib import Path

import pytest

from tests.harness import ROOT

VIRTUAL = ROOT / "kproxy" / "virtual"
FOLDS = [VIRTUAL / "fold.py", *sorted((VIRTUAL / "folds").glob("[a-z]*.py"))]
MERGING = {"get", "scan", "some", "keys_of", "live_bytes"}
"""The methods of State that look at unwritten changes as well as at the store."""


def readers_of_the_store() -> set[str]:
    """Return the methods of State that read written rows alone: for readers between two writes."""
    layers = {"changes": "Changes", "cached_rows": "CachedRows", "state": "State"}
    found = {
        method.name
        for module, layer in layers.items()
        for cls in ast.parse((VIRTUAL / f"{module}.py").read_text()).body
        if isinstance(cls, ast.ClassDef) and cls.name == layer
        for method in cls.body
        if isinstance(method, ast.FunctionDef) and method.name != "__init__"
        and "kv" in {n.attr for n in ast.walk(method) if isinstance(n, ast.Attribute)}
    }  # fmt: skip
    assert found > MERGING
    more = {"first_batch", "live_size", "clean_bytes"}  # they call those
    return (found - MERGING) | more | {"kv"}


def reads(tree: ast.AST, names: set[str]) -> list[str]:
    return [
        f"line {node.lineno}: .{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (node.attr == "kv" or (node.attr in names and is_state(node.value)))
    ]


def is_state(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ("state", "_state")


@pytest.mark.parametrize("path", FOLDS, ids=lambda path: path.stem)
def test_a_fold_does_not_read_the_store_past_unwritten_changes(path: Path) -> None:
    assert not reads(ast.parse(path.read_text()), readers_of_the_store())


def test_all_folds_are_looked_at() -> None:
    assert len(FOLDS) > 10


def test_producers_do_not_read_the_store_past_unwritten_changes() -> None:
    """`remembered` is for readers between two writes; a fold does not call it."""
    tree = ast.parse((VIRTUAL / "producers.py").read_text())
    tree.body = [
        node for node in tree.body
        if not isinstance(node, ast.FunctionDef) or node.name != "remembered"
    ]  # fmt: skip
    assert not reads(tree, readers_of_the_store())
    for path in FOLDS:
        assert "producers.remembered" not in path.read_text()


def test_the_look_for_reads_finds_them() -> None:
    tree = ast.parse("def f(self): return self._state.kv.scan(b'', b'')")
    assert reads(tree, readers_of_the_store()) == ["line 1: .kv"]
