"""Debian's Prometheus over served kproxies, and what the files in deploy/ ask of it."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness import ROOT, eventually, free_port, need_program

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "kproxy.json"


def fetched(url: str, seconds: float = 10) -> str:
    with urllib.request.urlopen(url, timeout=seconds) as answer:
        return str(answer.read().decode())


class Prometheus:
    """One that scrapes every second."""

    def __init__(self, address: str) -> None:
        self.address = address

    def _asked(self, path: str, **values: str) -> Any:
        query = urllib.parse.urlencode(values)
        return json.loads(fetched(f"http://{self.address}/api/v1/{path}?{query}"))["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found = self._asked("query", query=expression)["result"]
        assert isinstance(found, list)
        return found

    def query_range(self, expression: str, begin: float, end: float, step: float) -> Any:
        values = {"start": str(begin), "end": str(end), "step": str(step)}
        return self._asked("query_range", query=expression, **values)["result"]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._asked("rules")["groups"] for rule in group["rules"]]

    def wait_scraped(self, targets: int) -> None:
        eventually(lambda: len(self.query('up{job="kproxy"} == 1')) == targets, 30)


@contextmanager
def prometheus(directory: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Scrape these addresses under the job that the alerts and the dashboard ask for."""
    program = need_program("prometheus")
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{RULES}]\n"
        "scrape_configs: [{job_name: kproxy, scrape_timeout: 1s, static_configs: "
        f"[{{targets: {json.dumps(list(targets))}}}]}}]\n"
    )
    address = f"127.0.0.1:{free_port()}"
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}",
             f"--web.listen-address={address}"], stderr=log, stdout=log,
        )  # fmt: skip
        try:
            eventually(lambda: _ready(address), 30)
            yield Prometheus(address)
        finally:
            process.terminate()
            process.wait(20)


def _ready(address: str) -> bool:
    try:
        return "Ready" in fetched(f"http://{address}/-/ready", 2)
    except OSError:
        return False


def panels() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return (title, its (expression, legend)) of each panel, as Grafana would ask."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] != "row":
            targets = [(asked(one["expr"]), one["legendFormat"]) for one in panel["targets"]]
            found.append((panel["title"], targets))
    return found


def units() -> dict[str, str]:
    """Return the unit of each panel, as Grafana names it."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    drawn = [panel for panel in found if panel["type"] != "row"]
    return {panel["title"]: panel["fieldConfig"]["defaults"]["unit"] for panel in drawn}


def asked(expression: str) -> str:
    """Return the query that Grafana makes of an expression."""
    return expression.replace("$instance", ".*").replace("$__rate_interval", "15s")
