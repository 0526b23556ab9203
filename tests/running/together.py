"""Many small cases as one test: pytest takes some milliseconds for each that it knows of."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Test = Callable[..., Any]


def together(name: str, values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each value of a parameter; the one that fails is named."""
    cases = list(values)

    @contextmanager
    def named(value: Any) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            error.add_note(f"where {name} = {value!r}")
            raise

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for value in cases:
                with named(value):
                    test(**fixtures, **{name: value})

        @functools.wraps(test)
        async def run_async(**fixtures: Any) -> None:
            for value in cases:
                with named(value):
                    await test(**fixtures, **{name: value})

        found = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        others = [one for one in signature.parameters.values() if one.name != name]
        found.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return found

    return decorate
