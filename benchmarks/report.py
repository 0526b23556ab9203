"""The results, as a table, as JSON and as a picture."""

import json
import os
import platform
import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import (
    DIFFERENCE,
    FIGURES,
    RATIO,
    VALUE,
    Figure,
    Middle,
    Samples,
    against,
    reachable,
    samples,
)
from benchmarks.servers import EMBEDDED, KAFKA, ON_KAFKA, SYNCED
from benchmarks.works import Sizes

_SERVERS = (KAFKA, ON_KAFKA, EMBEDDED, SYNCED)


def machine() -> dict[str, str]:
    """Return the machine and versions that the numbers hold for."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        platform.machine(),
    )  # fmt: skip
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return {
        "cores": f"{os.cpu_count()} × {cpu}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "Python": f"{platform.python_version()} ({_built()})",
        "Java": java.stderr.split('"')[1],
        "Kafka": "4.3.1",
        "confluent-kafka": version("confluent-kafka"),
    }


def _built() -> str:
    """Return how the interpreter was made faster when it was built: a quarter of its speed and
    more.
    """
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    parts = (("--enable-optimizations", "PGO"), ("--with-lto", "LTO"))
    return ", ".join(f"{'with' if flag in flags else 'without'} {name}" for flag, name in parts)


def number(value: float) -> str:
    """Return a number with the three figures that matter."""
    if abs(value) >= 100:
        return f"{round(value, -max(0, len(str(int(abs(value)))) - 3)):,.0f}"
    return f"{value:.3g}"


def spread(found: Middle) -> str:
    if found.low == found.high:
        return number(found.value)
    return f"{number(found.value)} ({number(found.low)}–{number(found.high)})"


def compared(found: Samples, figure: Figure, server: str) -> tuple[str, bool | None]:
    """Return a cell: the value, or its relation to Kafka's; and whether the target is met."""
    value = against(found, figure, server, VALUE)
    if value is None:
        return "", None
    if server == KAFKA:
        return spread(value), None
    target = figure.targets.get(server)
    of = target.of if target else RATIO
    other = against(found, figure, server, of)
    if of == VALUE or other is None:
        text = spread(value)
    elif of == RATIO:
        text = f"{number(value.value)} = {spread(other)} ×"
    else:
        text = f"{number(value.value)} = Kafka {other.value:+.3g}"
    return text, target.met(other.value) if target and other else None


_MET = {None: "", True: " ✓", False: " ✗"}


def bounded(found: Samples, figure: Figure, server: str) -> str:
    """Return the bound of a missed target, where even a server without cost missed it."""
    most, target = reachable(found, figure, server), figure.targets[server]
    if most is None or target.met(most):
        return _MET[False]
    return f", of at most {number(most)}{' ×' if target.of == RATIO else ''}"


def table(found: Samples) -> str:
    """Return GitHub's Markdown:

    medians, in brackets between what the runs lay; targets and misses.
    """
    lines = [
        "| " + " | ".join(["", *_SERVERS, "target"]) + " |",
        "|---" + "|---:" * len(_SERVERS) + "|---|",
    ]
    for figure in FIGURES:
        if figure.key not in found:
            continue
        cells = []
        for server in _SERVERS:
            text, met = compared(found, figure, server)
            cells.append(text + (bounded(found, figure, server) if met is False else _MET[met]))
        goals = dict.fromkeys(map(str, figure.targets.values()))
        lines.append(
            f"| {figure.title}, {figure.unit} | {' | '.join(cells)} | {', '.join(goals)} |"
        )
    return "\n".join(lines)


_SHORT = ("produce_16k", "produce_256k", "consume", "p50", "again", "follow")


def short_table(found: Samples) -> str:
    """Return six rows of medians for the README, without targets."""
    servers = (KAFKA, ON_KAFKA, EMBEDDED)
    lines = ["| " + " | ".join(["", *servers]) + " |", "|---" + "|---:" * len(servers) + "|"]
    titles = {"again": "a record to each of many queues, Java"}
    for figure in FIGURES:
        if figure.key in _SHORT:
            medians = (against(found, figure, server, VALUE) for server in servers)
            cells = ["" if middle is None else number(middle.value) for middle in medians]
            title = titles.get(figure.key, figure.title)
            lines.append(f"| {title}, {figure.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


class Results(NamedTuple):
    """The content of figures.json."""

    machine: dict[str, str]
    sizes: Sizes
    samples: Samples


def told(results: Results) -> str:
    """Return the table, and the machine that it holds for."""
    here = results.machine
    versions = ", ".join(
        f"{name} {here[name]}" for name in ("Kafka", "Java", "Python", "confluent-kafka")
    )
    return (
        f"{table(results.samples)}\n\nMedians of {results.sizes.runs} alternating runs,"
        f" in brackets between what the runs lay; {here['cores']}, {here['memory']}; {versions}."
        ' "Of at most": so much would a server reach that took no CPU itself; the client, and the'
        " Kafka behind kproxy, take the rest.\n"
    )


def write(directory: Path, found: Samples, sizes: Sizes) -> None:
    """Write table.md, figures.json and figures.png in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    results = Results(machine(), sizes, found)
    (directory / "table.md").write_text(told(results))
    values = results._asdict() | {"sizes": vars(sizes)}
    (directory / "figures.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    draw(directory / "figures.png", found)


def read(directory: Path) -> Results:
    """Read the results of a directory."""
    values = json.loads((directory / "figures.json").read_text())
    found = samples()
    for key, servers in values["samples"].items():
        found[key].update(servers)
    return Results(values["machine"], Sizes(**values["sizes"]), found)


def earlier(directory: Path, sizes: Sizes) -> Samples:
    """Return earlier results, by this machine, with these versions and sizes."""
    if (directory / "figures.json").exists():
        values = json.loads((directory / "figures.json").read_text())
        if (values["machine"], values["sizes"]) == (machine(), vars(sizes)):
            return read(directory).samples
    return samples()


def draw(path: Path, found: Samples) -> None:
    """Draw each figure as a fraction of its target: right of the line is better than asked."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figures = [figure for figure in FIGURES if figure.key in found and figure.targets]
    height = 0.36
    chart, axes = plt.subplots(figsize=(11, 1.6 + 0.5 * len(figures)), layout="constrained")
    for offset, (server, colour) in enumerate(((ON_KAFKA, "#1f77b4"), (EMBEDDED, "#ff7f0e"))):
        at, widths, labels = [], [], []
        for place, figure in enumerate(reversed(figures)):
            target = figure.targets.get(server)
            middle = against(found, figure, server, target.of) if target else None
            value = against(found, figure, server, VALUE)
            if target is None or middle is None or value is None:
                continue
            at.append(place + (0.5 - offset) * height)
            widths.append(_score(found, figure, server))
            unit = {RATIO: " ×", DIFFERENCE: " ms"}.get(target.of, "")
            labels.append(f"{number(middle.value)}{unit} ({target})")
        bars = axes.barh(at, widths, height=height, color=colour, label=server)
        above_the_line = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.bar_label(bars, labels, fontsize=8, padding=4, bbox=above_the_line)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(figures)), [figure.title for figure in reversed(figures)])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(max(low / 2, 0.01), high * 3)
    axes.set_xlabel("times as good as the target (log scale); the line is the target")
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    chart.savefig(path, dpi=130)
    plt.close(chart)


def _score(found: Samples, figure: Figure, server: str) -> float:
    """Return how many times as good as its target a figure is."""
    target = figure.targets[server]
    if target.of == DIFFERENCE:
        mine, kafka = (against(found, figure, name, VALUE) for name in (server, KAFKA))
        assert mine
        assert kafka
        return (kafka.value + target.bound) / mine.value
    middle = against(found, figure, server, target.of)
    assert middle
    value = max(middle.value, 1e-9)
    return value / target.bound if target.at_least else target.bound / value
