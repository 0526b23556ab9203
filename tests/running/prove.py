"""All long proofs, one after another: `make prove`.

A proof is a test file with tests marked `long`. A proof that passed is not run again until the code
or the tests change, so a run that was interrupted goes on where it was. `docs/proofs.md` is made
from the results: date, commit, proof, outcome, time.
"""

import ast
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.running import soak
from tests.running.record import RESULTS, ROOT, head, read_lines, state

PAGE = ROOT / "docs" / "proofs.md"
_NO_TESTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one proof."""

    proof: str
    commit: str
    date: str
    code: int
    outcome: str
    minutes: float

    @property
    def holds(self) -> bool:
        return self.code in (0, _NO_TESTS)


def proofs() -> list[str]:
    """Return the test files that have tests marked `long`."""
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "long", "--collect-only"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    return sorted(set(re.findall(r"^(tests/\S+?)::", listed, re.MULTILINE)))


def read(results: Path) -> dict[str, Result]:
    """Return the last result of each proof."""
    found = (Result(**one) for one in read_lines(results))
    return {result.proof: result for result in found}


def prove(proof: str) -> Result:
    """Run a proof to its end; its output goes beside the results."""
    begun, log = time.monotonic(), RESULTS / f"{proof.replace('/', '.')}.log"
    with log.open("w") as out:
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "long", proof],
            cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip
    last = log.read_text(errors="replace").strip().splitlines()
    outcome = re.sub(r"\s+in [\d.]+s.*", "", last[-1].strip("= ")) if last else "nothing printed"
    return Result(
        proof=proof, commit=head(), code=code, outcome=outcome,
        date=datetime.now(UTC).strftime("%Y-%m-%d"), minutes=(time.monotonic() - begun) / 60,
    )  # fmt: skip


def _subject(proof: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / proof).read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def page(results: dict[str, Result], soaked: list[str]) -> str:
    """Return docs/proofs.md; `soaked`: the tables of fresh seeds."""
    lines = [
        "# Long proofs", "",
        "`make prove` runs them and writes this page. A proof that passed is run again once the",
        "code or the tests have changed.", "",
        "| proof | what is proven | commit | date | outcome | minutes |",
        "|---|---|---|---|---|---:|",
    ]  # fmt: skip
    for proof, one in sorted(results.items()):
        outcome = one.outcome if one.holds else f"**{one.outcome}**"
        lines.append(
            f"| `{proof.removeprefix('tests/')}` | {_subject(proof)} | {one.commit} | {one.date} "
            f"| {outcome} | {one.minutes:.1f} |"
        )
    if soaked:
        lines += ["", "## Fresh seeds", "", "`make soak` draws seeds anew each time.", "", *soaked]
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--minutes", type=float, help="Begin no further proof after so many minutes.")
@click.argument("only", nargs=-1)
def main(minutes: float | None, only: tuple[str, ...]) -> None:
    """Run the long proofs that have not passed on this code; ONLY: parts of their names."""
    RESULTS.mkdir(exist_ok=True)
    results = RESULTS / f"{state()}.jsonl"
    found, begun = read(results), time.monotonic()
    wanted = [one for one in proofs() if not only or any(part in one for part in only)]
    missing = [one for one in wanted if one not in found or not found[one].holds]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    PAGE.write_text(page(found, soak.shown()))
    with Progress(*columns) as progress:
        bar = progress.add_task("proofs", total=len(wanted), completed=len(wanted) - len(missing))
        for proof in missing:
            if minutes is not None and time.monotonic() - begun > minutes * 60:
                break
            progress.update(bar, description=proof)
            result = prove(proof)
            found[proof] = result
            with results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            progress.console.print(f"{proof}: {result.outcome} in {result.minutes:.1f} min")
            progress.advance(bar)
            PAGE.write_text(page(found, soak.shown()))
    failed = [one for one, result in found.items() if not result.holds]
    if failed:
        sys.exit(f"{len(failed)} failed, their output is in {RESULTS.name}/: {', '.join(failed)}")


if __name__ == "__main__":
    main()
