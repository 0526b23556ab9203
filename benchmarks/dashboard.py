"""The picture of the dashboard in docs/: each panel as a real Prometheus has it.

    .venv/bin/python -m benchmarks.dashboard PICTURE.png [SECONDS]

Serves a kproxy, lets clients work with it, has Debian's Prometheus scrape it, and draws what
deploy/grafana/kproxy.json asks. Grafana itself draws more nicely.
"""

import math
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.harness import served
from tests.observe.prometheus import Prometheus, panels, prometheus, units

_QUEUES = 200
_STEP_S = 1.0
_COLUMNS = 4
_UNITS = {
    "cps": "a second", "reqps": "a second", "Bps": "bytes a second", "s": "seconds",
    "bytes": "bytes", "percentunit": "cores", "short": "",
}  # fmt: skip
_FLAGS = (
    "--http-listen", "127.0.0.1:0", "--metrics-queues", "orders-.*", "--metrics-groups", ".*"
)  # fmt: skip


def work(address: str, over: threading.Event) -> None:
    """Run a load that comes and goes, and two groups, one of which is too slow."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    groups = [
        Consumer(
            {"bootstrap.servers": address, "group.id": name, "auto.offset.reset": "earliest",
             "auto.commit.interval.ms": 1000}
        )
        for name in ("billing", "search")
    ]  # fmt: skip
    names = [f"orders-{number:03}" for number in range(_QUEUES)]
    for name in names:
        producer.produce(name, b"first")
    producer.flush(60)
    for group in groups:
        group.subscribe(names)
    began = time.monotonic()
    while not over.is_set():
        wave = 1 + math.sin((time.monotonic() - began) / 12)
        for _ in range(int(40 * wave)):
            number = min(_QUEUES - 1, int(random.expovariate(0.05)))
            producer.produce(names[number], b"x" * random.randrange(100, 2000))
        producer.poll(0.02)
        groups[0].consume(500, 0.01)
        groups[1].consume(15, 0.005)
    producer.flush(10)
    for group in groups:
        group.close()


def draw(seen: Prometheus, begin: float, end: float, picture: Path) -> None:
    """Draw all panels, as rows of four."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [panel for panel in panels() if "(on Kafka)" not in panel[0]]
    rows = math.ceil(len(shown) / _COLUMNS)
    figure, axes = pyplot.subplots(rows, _COLUMNS, figsize=(17, 2.7 * rows))
    for axis, (title, targets) in zip(axes.flat, shown, strict=False):
        for expression, legend in targets:
            for series in seen.query_range(expression, begin, end, _STEP_S):
                _line(axis, series, legend, begin)
        unit = _UNITS[units()[title]]
        axis.set_title(f"{title}, {unit}" if unit else title, fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        highest = sorted(axis.lines, key=lambda line: -max(line.get_ydata()))
        axis.legend(handles=highest[:5], fontsize=6, frameon=False, loc="upper left")
        axis.margins(y=0.45 if highest else 0)
        axis.set_ylim(bottom=0)
    for axis in list(axes.flat)[len(shown) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(picture, dpi=80)


def _line(axis: Any, series: Any, legend: str, begin: float) -> None:
    label = legend
    for name, value in series["metric"].items():
        label = label.replace("{{" + name + "}}", "worker" if name == "instance" else value)
    points = [(float(at) - begin, float(value)) for at, value in series["values"]]
    points = [(at, value) for at, value in points if math.isfinite(value)]
    if points:
        axis.plot(*zip(*points, strict=True), label=label, linewidth=1.2)


def main(picture: Path, seconds: float) -> None:
    over = threading.Event()
    with tempfile.TemporaryDirectory() as directory:
        with served(Path(directory) / "data", *_FLAGS, by_exec=True) as running:
            event = running.event("http_ready")
            assert event is not None
            with prometheus(Path(directory) / "prometheus", [event["listen"]]) as seen:
                worker = threading.Thread(target=work, args=(running.address, over))
                worker.start()
                begin = time.time() + 12
                time.sleep(12 + seconds)
                draw(seen, begin, time.time(), picture)
                over.set()
                worker.join(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 120)
