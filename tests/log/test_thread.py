"""A log's thread."""

import weakref

import anyio
import pytest

from kproxy.log.thread import LogThread


class Work:
    """Work that can be seen to be let go of."""

    def __call__(self) -> None:
        """Do nothing."""


async def test_finished_call_is_let_go_of() -> None:
    thread = LogThread("test")
    try:
        work = Work()
        seen = weakref.ref(work)
        await thread.run(work)
        del work
        for _ in range(100):
            if seen() is None:
                break
            await anyio.sleep(0.01)
        assert seen() is None
    finally:
        thread.close()


async def test_an_error_is_raised_where_it_was_asked_for() -> None:
    thread = LogThread("test")

    def fail() -> None:
        raise OSError("full")

    try:
        with pytest.raises(OSError, match="full"):
            await thread.run(fail)
    finally:
        thread.close()
