"""Log lines: what a client sent is text in them and nothing else."""

import json
import subprocess
import sys

CODE = r"""
import sys, structlog
from kproxy.logs import configure
configure("info", sys.argv[1])
log = structlog.get_logger()
evil = "a\x1b[2Jb\x9b1m\x07\u202e"
log.warning("refused " + evil, reason=evil, names=[evil])
try:
    secret = "not to be shown"
    raise ValueError(evil + "\nsecond")
except ValueError:
    log.exception("failed", peer=evil)
"""


def logged(style: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE, style], capture_output=True, check=True,
        env={"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    return done.stderr.decode()


def test_a_terminal_is_sent_no_control_characters() -> None:
    text = logged("console")
    plain = text.replace("\x1b[0m", "").replace("\x1b[1m", "")
    for style in range(30, 38):  # structlog's own colours
        plain = plain.replace(f"\x1b[{style}m", "").replace(f"\x1b[{style};1m", "")
    plain = plain.replace("\x1b[2m", "")
    assert not set(plain) & set("\x1b\x9b\x07\u202e")
    assert r"a\x1b[2Jb\x9b1m\x07\u202e" in plain
    assert "ValueError" in plain
    assert "second" in plain
    assert "not to be shown" not in plain


def test_json_lines_are_ascii() -> None:
    lines = logged("json").splitlines()
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert [json.loads(line)["event"][:6] for line in lines] == ["refuse", "failed"]
