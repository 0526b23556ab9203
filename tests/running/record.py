"""The record of what was proven: of which code, and where it is kept."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".proofs"
PROVEN = ("kproxy", "tests", "pyproject.toml", "constraints.txt")
"""Parts of the repository that a proof is of; a commit that leaves them alone keeps its proofs."""


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def state() -> str:
    """Return a name for what is proven: the trees at HEAD. Exits where they have been changed."""
    if _git("status", "--porcelain", "--", *PROVEN):
        sys.exit("commit your changes first: a proof is of a commit")
    trees = [_git("rev-parse", f"HEAD:{part}")[:10] for part in PROVEN]
    return "-".join(trees[:2])


def head() -> str:
    return _git("rev-parse", "--short", "HEAD")


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield what each line says; what a kill cut off is left out."""
    if file.exists():
        for line in file.read_text().splitlines():
            with suppress(ValueError):
                yield json.loads(line)
