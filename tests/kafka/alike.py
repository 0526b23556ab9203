"""The same requests to kproxy and to a real Kafka, and a comparison of the answers.

`canonical.MAY_DIFFER` names what may differ: ids, times of now, text of messages, leader epochs.
"""

from collections.abc import Callable
from functools import partial, update_wrapper
from inspect import Signature, signature
from typing import Any, Concatenate

from tests.harness import Served, eventually
from tests.kafka.canonical import unheard
from tests.kafka.recorded import Recorded, Target
from tests.wire import Wire


def _nothing(wire: Wire) -> None:
    pass


Script = Callable[[Wire, str], list[Any]]
"""Requests by a wire, for a queue of this name or several that begin so; what is compared."""


def alike(script: Callable[Concatenate[Wire, str, ...], Any]) -> Callable[..., None]:
    """Make a script of requests a test, which compares what it returns with Kafka's answers."""
    return as_test(script, compare)


def as_test(
    script: Callable[..., Any], run: Callable[[Recorded, Served, Callable[..., Any]], None]
) -> Callable[..., None]:
    """Return a test that runs a script by `run`. Parameters behind its first two are the test's."""

    def test(recorded: Recorded, server: Served, **more: Any) -> None:
        run(recorded, server, partial(script, **more))

    given = list(signature(test).parameters.values())[:2]
    own = list(signature(script).parameters.values())[2:]
    update_wrapper(test, script)
    del test.__wrapped__  # type: ignore[attr-defined]
    test.__signature__ = Signature([*given, *own])  # type: ignore[attr-defined]
    return test


def compare(
    recorded: Recorded,
    server: Served,
    script: Script,
    prepare: Callable[[Wire], None] = _nothing,
    *,
    asked: str | None = None,
) -> None:
    """Run a script of requests and compare what it returns, step by step, with Kafka's answers."""

    def run(target: Target) -> list[Any]:
        with Wire(target.host, target.port) as wire:
            with unheard():
                prepare(wire)
            return script(wire, recorded.name)

    same(*recorded.both(run, server, asked))


def same(theirs: Any, ours: Any) -> None:
    """Compare step by step."""
    for step, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        assert other == one, f"step {step}: a real Kafka answers {one}, kproxy {other}"


def made(wire: Wire, queue: str, partitions: int = 1, **configs: str) -> None:
    """Create a queue and wait until it can be written: a real Kafka takes a moment."""
    assert wire.create(queue, partitions, **configs).error_code == 0
    for index in range(partitions):
        eventually(lambda i=index: wire.list_offset(queue, -1, i).error_code == 0)
