"""`DATA_DIR/admin.sock`: what the operator of this machine asks of a running kproxy.

The socket is its owner's alone (0600), and who connects must be that user or root. A connection
has one command: a JSON line `{"command": NAME, …}`. The server answers with JSON lines: any number
of `{"progress": {…}}`, then one `{"done": {…}}` or `{"error": TEXT}`.
"""

from pathlib import Path

NAME = "admin.sock"
LINE_BYTES_MAX = 64 << 10
_PATH_BYTES_MAX = 100  # the length of an address; systems differ a little


def reachable(directory: Path, descriptor: int) -> str:
    """Return a path to the socket that fits into an address. `descriptor`: of the directory, open.

    Raises OSError where there is none.
    """
    path = str((directory / NAME).absolute())
    if len(path.encode()) <= _PATH_BYTES_MAX:
        return path
    short = Path(f"/proc/self/fd/{descriptor}")
    if not short.is_dir():
        raise OSError(f"the path of {path} is too long for a socket")
    return str(short / NAME)
