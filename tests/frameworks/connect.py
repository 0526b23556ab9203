"""Kafka Connect's workers and MirrorMaker, as processes."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness import KAFKA_LIBS, SHORT_LIVED_JAVA, eventually, free_port, need

READY_S = 90  # a worker scans its classes, makes its topics, and joins its group


class JavaProgram:
    """A Java program with a properties file, until it is stopped or killed."""

    def __init__(self, main_class: str, directory: Path, settings: Mapping[str, Any]) -> None:
        need(KAFKA_LIBS.exists(), "Kafka's libraries: make kafka-libs")
        directory.mkdir(parents=True, exist_ok=True)
        properties = directory / "settings.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.log = directory / "out"
        command = [
            "java", "-Xmx256m", *SHORT_LIVED_JAVA,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{KAFKA_LIBS}/*", main_class,
            str(properties),
        ]  # fmt: skip
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def stop(self) -> None:
        """End it as an operator does, and wait."""
        self.process.terminate()
        self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def last_words(self) -> str:
        return self.log.read_text()[-4000:]


class ConnectWorker(JavaProgram):
    """A distributed worker of Kafka Connect; asked over its REST interface."""

    def __init__(self, address: str, group: str, directory: Path, **more: Any) -> None:
        """Take `more`: settings, with "_" for ".", beyond those that it needs."""
        self.port = free_port()
        self.name = f"127.0.0.1:{self.port}"
        text = "org.apache.kafka.connect.storage.StringConverter"
        topics = {
            f"{kind}.storage.{setting}": value
            for kind in ("config", "offset", "status")
            for setting, value in (("topic", f"{group}-{kind}"), ("replication.factor", 1))
        }
        super().__init__(
            "org.apache.kafka.connect.cli.ConnectDistributed", directory,
            topics | {
                "bootstrap.servers": address, "group.id": group, "key.converter": text,
                "value.converter": text, "offset.storage.partitions": 5,
                "status.storage.partitions": 2, "offset.flush.interval.ms": 500,
                "listeners": f"http://{self.name}", "plugin.discovery": "service_load",
                "session.timeout.ms": 6000, "heartbeat.interval.ms": 1000,
                "rebalance.timeout.ms": 10_000, "scheduled.rebalance.max.delay.ms": 1000,
                **{name.replace("_", "."): value for name, value in more.items()},
            },
        )  # fmt: skip

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Return the answer of the REST interface; None where there is no such thing, or not
        now.
        """
        request = urllib.request.Request(
            f"http://{self.name}{path}", method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code in (404, 409):  # it is gone; or a rebalance is under way
                return None
            raise
        except (urllib.error.URLError, ConnectionError):
            return None

    def wait_ready(self) -> "ConnectWorker":
        def ready() -> bool:
            assert self.process.poll() is None, self.last_words()
            return self.ask("/connectors") is not None

        eventually(ready, READY_S)
        return self

    def configure(self, connector: str, settings: Mapping[str, Any]) -> None:
        path = f"/connectors/{connector}/config"
        eventually(lambda: self.ask(path, "PUT", dict(settings)), 30)

    def state(self, connector: str) -> str | None:
        """Return the state of its task, as "RUNNING"; None where it has none."""
        status = self.ask(f"/connectors/{connector}/status") or {}
        states = [task["state"] for task in status.get("tasks", ())]
        assert "FAILED" not in states, (status, self.last_words())
        return states[0] if states and status["connector"]["state"] == states[0] else None

    def runner(self, connector: str) -> str | None:
        """Return the address of the worker that has its task."""
        status = self.ask(f"/connectors/{connector}/status") or {}
        return next((str(task["worker_id"]) for task in status.get("tasks", ())), None)

    def offsets(self, connector: str) -> list[Any]:
        """Return the stored offsets of where it stands."""
        found = self.ask(f"/connectors/{connector}/offsets") or {}
        return [one["offset"] for one in found.get("offsets", ())]
