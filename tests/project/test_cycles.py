"""No class that is made per use keeps itself: Python's collector looks at young objects only.

An object that keeps a method of its own, a closure over itself, or an object that was given one,
is a reference cycle: reference counting never frees it. Such classes are listed here, each with
its reason.
"""

import ast
from collections.abc import Iterator

from tests.harness import ROOT

ALIVE = "it lives as long as its worker"
CLAIM = "one for each claim of a shard, which the net of `loop.garbage` finds"
KEEPS_ITSELF = {
    "Appender": ALIVE,
    "ClusterNode": ALIVE,
    "CommandRouter": ALIVE,
    "Connection": "`connection_lost` cuts it: the pipeline lets go of it, the timer is cancelled",
    "Coordinator": CLAIM,
    "DataLink": ALIVE,
    "Fold": CLAIM,
    "GroupRules": ALIVE,
    "Hashing": ALIVE,
    "HttpThread": ALIVE,
    "KeySet": ALIVE,
    "LogReader": ALIVE,
    "LogThread": CLAIM,
    "Looker": CLAIM,
    "LoopWatch": ALIVE,
    "Membership": ALIVE,
    "PlainProducer": ALIVE,
    "RowAnnouncer": ALIVE,
    "Shard": CLAIM,
    "ShardOwner": ALIVE,
    "TlsAcceptor": ALIVE,
    "TopicTailer": ALIVE,
    "Worker": ALIVE,
    "_ShardRoutes": CLAIM,
}
_NO_METHODS = {"property", "cached_property", "staticmethod", "setter"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def methods_of(of: ast.ClassDef, classes: dict[str, list[ast.ClassDef]]) -> set[str]:
    """Return the names of the methods of a class and of its bases."""
    found = {
        one.name
        for one in of.body
        if isinstance(one, Function)
        and not any(name_of(decorator) in _NO_METHODS for decorator in one.decorator_list)
    }
    for base in of.bases:
        for known in classes.get(name_of(base), ()):
            found |= methods_of(known, classes) if known is not of else set()
    return found


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def keeps_itself(value: ast.expr, methods: set[str]) -> bool:
    """Whether what is assigned holds on to `self`: by a method, a closure, or as an argument."""
    called = {id(one.func) for one in ast.walk(value) if isinstance(one, ast.Call)}
    for one in ast.walk(value):
        if isinstance(one, ast.Attribute) and is_self(one.value) and id(one) not in called:
            if one.attr in methods:
                return True
        if isinstance(one, ast.Lambda) and any(map(is_self, ast.walk(one))):
            return True
    return isinstance(value, ast.Call) and any(map(is_self, value.args))


def assigned(method: Function) -> Iterator[ast.expr]:
    """Yield the values that a method puts into attributes, its own or those of its arguments."""
    for one in ast.walk(method):
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            if any(isinstance(target, ast.Attribute) for target in targets):
                yield one.value


def classes_that_keep_themselves() -> dict[str, list[str]]:
    """Return their places, by the names of classes."""
    files = sorted((ROOT / "kproxy").rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in files}
    classes: dict[str, list[ast.ClassDef]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    found: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = methods_of(node, classes)
                for method in filter(lambda one: isinstance(one, Function), node.body):
                    assert isinstance(method, Function)
                    for value in assigned(method):
                        if keeps_itself(value, methods):
                            place = f"{path.relative_to(ROOT)}:{value.lineno}"
                            found.setdefault(node.name, []).append(place)
    return found


def test_no_class_keeps_itself_but_those_listed() -> None:
    found = classes_that_keep_themselves()
    unknown = {name: places for name, places in found.items() if name not in KEEPS_ITSELF}
    assert not unknown, "a reference cycle for each object: see the head of this file"
    assert not KEEPS_ITSELF.keys() - found.keys()


def test_the_look_for_cycles_finds_each_form() -> None:
    methods = {"method"}
    for kept in ("self.method", "lambda: self.x", "Made(self)", "Made(1, self.method)",
                 "self.method if x else None", "[self.method]"):  # fmt: skip
        assert keeps_itself(ast.parse(kept, mode="eval").body, methods), kept
    for free in ("self.method()", "self.value", "Made(self.value)", "lambda: 1"):
        assert not keeps_itself(ast.parse(free, mode="eval").body, methods), free
