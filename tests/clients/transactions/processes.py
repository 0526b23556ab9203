"""Processes that work on queues until something fails, are killed, and start again."""

import subprocess
import time
from pathlib import Path

from tests.harness import ROOT


class Processes:
    """A process for each slot; what it does is in its command."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.ended = self.killed = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._born: dict[str, float] = {}

    def run(self, slot: str, *command: str) -> None:
        self._commands[slot] = [*command]
        self._begin(slot)

    def _begin(self, slot: str) -> None:
        with self.log.open("ab") as out:
            self._processes[slot] = subprocess.Popen(
                self._commands[slot], cwd=ROOT, stdout=out, stderr=out
            )
        self._born[slot] = time.monotonic()

    @property
    def slots(self) -> list[str]:
        return list(self._processes)

    def process(self, slot: str) -> subprocess.Popen[bytes]:
        return self._processes[slot]

    def kill(self, slot: str) -> None:
        self._processes[slot].kill()
        self._processes[slot].wait(30)
        self.killed += 1

    def revive(self) -> None:
        """Start again who has ended, by itself or not, but none twice a second."""
        for slot, process in self._processes.items():
            if process.poll() is not None and time.monotonic() > self._born[slot] + 1:
                self.ended += 1
                self._begin(slot)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(30)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]
