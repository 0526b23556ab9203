"""`python -m benchmarks`: start all servers, load them in turn, say what was measured, clean up."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from benchmarks import idle, million, report, works
from benchmarks.figures import Samples, samples
from benchmarks.servers import all_servers

_WORKS = {
    "produce_16k": works.produce_16k,
    "produce_256k": works.produce_256k,
    "consume": works.consume,
    "latency": works.latency,
    "wide": works.wide,
    "librdkafka": works.wide_librdkafka,
    "follow": works.follow,
}
_ALONE = {"idle": idle.idle, "million": million.million}  # on servers of their own
_DISK_BYTES = 20_000_000_000


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="one small run of each: under five minutes.")
@click.option("--runs", type=click.IntRange(1), help="the runs of each work; medians are of these.")
@click.option(
    "--work", "chosen", multiple=True, type=click.Choice([*_WORKS, *_ALONE]),
    help="only these; what the others gave here before is kept.",
)  # fmt: skip
@click.option(
    "--results", type=click.Path(path_type=Path), default=Path("benchmarks/results"),
    help="directory for table.md, figures.json and figures.png.",
)  # fmt: skip
def main(quick: bool, runs: int | None, chosen: tuple[str, ...], results: Path) -> None:
    """Measure kproxy embedded, kproxy on a Kafka, and that Kafka, in turn on this machine."""
    if shutil.which("java") is None:
        raise click.ClickException("no java: the loads are Kafka's own tools; install a JDK 17")
    sizes = works.QUICK if quick else works.FULL
    if runs:
        sizes = replace(sizes, runs=runs)
    found = report.earlier(results, sizes)
    directory = Path(tempfile.mkdtemp(prefix="kproxy-bench-"))
    try:
        free = shutil.disk_usage(directory).free
        if free < _DISK_BYTES:
            raise click.ClickException(
                f"{free / 1e9:.0f} GB free in {directory.parent}, {_DISK_BYTES / 1e9:.0f} are"
                " needed: name a larger one with TMPDIR"
            )
        for measured in _measure(directory, sizes, chosen or (*_WORKS, *_ALONE)):
            found.update(measured)
            report.write(results, found, sizes)
    finally:
        shutil.rmtree(directory)
    click.echo(report.table(found))


def _measure(directory: Path, sizes: works.Sizes, chosen: tuple[str, ...]) -> Iterator[Samples]:
    """Yield the samples of each work, as it ends."""
    if any(name in _WORKS for name in chosen):
        with all_servers(directory) as servers:
            for name, work in _WORKS.items():
                if name in chosen:
                    found = samples()
                    with _timed(name):
                        work(servers, sizes, found)
                    yield found
    for name, alone in _ALONE.items():
        if name in chosen:
            found = samples()
            with _timed(name):
                alone(directory / name, sizes, found)
            yield found


class _timed:  # noqa: N801
    """A note on standard error of the work that goes on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._began = time.monotonic()
        click.echo(f"{self._name} … ", nl=False, err=True)

    def __exit__(self, *_: object) -> None:
        click.echo(f"{time.monotonic() - self._began:.0f} s", err=True)


if __name__ == "__main__":
    main()
