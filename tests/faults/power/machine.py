"""A machine whose power is cut: kproxy's files are then what was synced, and some of the rest."""

import os
import random
import subprocess
from pathlib import Path

from tests.faults.power.disk import ALL, Disk, Keep, Tree, found, put
from tests.forked import AS_INSTALLED, fork_in
from tests.harness import Served, need_program

_SOURCE = Path(__file__).with_name("recorder.c")
KEEPS = (
    Keep(0, 0), Keep(1, 1), Keep(0, 1), Keep(1, 0), Keep(0.5, 0.5), Keep(0.9, 0.5), Keep(1, 0.9),
    Keep(0.5, 1),
)  # fmt: skip


def compiled(directory: Path) -> Path:
    """Return the recorder's library; processes that preload it are forked from now on."""
    library = directory / "recorder.so"
    subprocess.run(
        [need_program("gcc"), "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"],
        check=True,
    )
    fork_in(os.environ | AS_INSTALLED | {"LD_PRELOAD": str(library)})
    return library


class Machine:
    """A machine with one disk, on which one kproxy is served at a time."""

    def __init__(self, recorder: Path, directory: Path) -> None:
        self.root = directory / "disk"
        self.data_dir = self.root / "data"
        self._recorder = recorder
        self._trace = directory / "trace"
        self._disk: Disk
        self.server: Served
        self.root.mkdir(parents=True)

    def close(self) -> None:
        """End the process, if one is left."""
        if hasattr(self, "server"):
            self.server.kill()

    def serve(self, *flags: str, forgets: tuple[str, ...] = (), port: int = 0) -> Served:
        """Serve; `forgets` has patterns of paths, from the disk's root, whose fsyncs do nothing."""
        self._trace.unlink(missing_ok=True)
        self._trace.touch()
        self._disk = Disk(self.root)
        env = {
            "LD_PRELOAD": str(self._recorder), "POWER_DIR": str(self.root),
            "POWER_TRACE": str(self._trace), "POWER_FORGETS": "\n".join(forgets),
        }  # fmt: skip
        self.server = Served(self.data_dir, *flags, port=port, env=env)
        return self.server.wait_ready(120)

    @property
    def log_synced_at(self) -> int:
        """The place in the trace before which all of kproxy's log is on disk."""
        return self._disk.log_synced_at

    def play(self) -> "Machine":
        """Follow the trace while the process goes on."""
        self._disk.play(self._trace)
        return self

    def now(self) -> int:
        """Return the place in the trace: what was answered by now is in what lies before it."""
        return self._trace.stat().st_size

    def end(self) -> int:
        """End the process as a power cut does; return the trace's end."""
        self.server.kill()
        return self.now()

    def left(self, at: int, keep: Keep, rng: random.Random) -> Tree:
        """Return what a cut at this place leaves; later places are for later calls."""
        self._disk.play(self._trace, at)
        return self._disk.cut(keep, rng)

    def cut(self, at: int, keep: Keep, rng: random.Random) -> None:
        """Have the disk as a cut at this place leaves it, once the process has ended."""
        tree, synced_at = self.left(at, keep, rng), self._disk.log_synced_at
        self.check_record()
        self._disk.log_synced_at = synced_at
        put(tree, self.root)

    def check_record(self) -> None:
        """Check that the trace has all that the process did: else a cut would show nothing."""
        self._disk.play(self._trace)
        there, said = found(self.root), self._disk.cut(ALL, random.Random(0))
        differing = {name for name in there.keys() | said if there.get(name) != said.get(name)}
        assert len(differing) <= 1, differing  # the kill may have come before the last one was done
