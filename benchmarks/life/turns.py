"""The longest turn of a served kproxy's loop: seconds of CPU of its thread.

Other load on the machine does not count. A process started with `environment` writes a line for
each time that its loop was held for some milliseconds: when (`time.time`), and for how long.
"""

from pathlib import Path

_HELD_S = 0.005  # less is told of nobody
_SITE = """
import asyncio, os, sys, time
sys.path.insert(0, os.getcwd())
from kproxy.observe import loop_watch

_told = open({told!r}, "a", buffering=1)


class Watched(loop_watch.LoopWatch):
    def start(self):
        super().start()
        loop, before = asyncio.get_running_loop(), time.thread_time()

        def look():
            nonlocal before
            now = time.thread_time()
            if now - before > {held}:
                _told.write(f"{{time.time()}} {{now - before}}\\n")
            before = now
            loop.call_later(0.001, look)

        look()


loop_watch.LoopWatch = Watched
"""


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of a process whose turns are told in this directory."""
    directory.mkdir(parents=True, exist_ok=True)
    site = _SITE.format(told=str(directory / "turns"), held=_HELD_S)
    (directory / "sitecustomize.py").write_text(site)
    return {"PYTHONPATH": str(directory)}


def longest(directory: Path, since: float, until: float) -> float:
    """Return the longest turn between two times, in seconds; what is not told counts as 5 ms."""
    lines = (directory / "turns").read_text().splitlines()
    told = [tuple(map(float, line.split())) for line in lines]
    return max((held for at, held in told if since <= at <= until), default=_HELD_S)
