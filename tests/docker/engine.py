"""A Docker engine for tests: the machine's own, or one started in a directory of the test's.

Images come from a registry where one can be reached. Otherwise the base image is made with
debootstrap, and Kafka's from the broker that the other tests use, under the same tags.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness import KAFKA_LIBS, ROOT, need

BASE, KAFKA = "python:3.11-slim-bookworm", "apache/kafka:4.3.1"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_CONF = Path("/etc/pip.conf")

# The steps of the official image on its environment, as far as docker-compose.yml needs them.
KAFKA_START = r"""#!/bin/bash
set -e
env | grep '^KAFKA_' | while IFS='=' read -r name value; do
  name=${name#KAFKA_}
  echo "$(echo "$name" | tr 'A-Z_' 'a-z.')=$value"
done > /tmp/server.properties
java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted \
  -t 5L6g3nShT-eMCtK--X86sw -c /tmp/server.properties
exec java -Xmx512m -cp '/opt/kafka/libs/*' kafka.Kafka /tmp/server.properties
"""
KAFKA_DOCKERFILE = f"""
FROM {BASE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless
COPY libs /opt/kafka/libs
COPY start /opt/kafka/start
RUN useradd --uid 1000 appuser && install -d -o appuser /var/lib/kafka/data
USER appuser
VOLUME /var/lib/kafka/data
CMD ["bash", "/opt/kafka/start"]
"""


class Engine:
    """Runs docker and docker-compose against one engine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = dict(os.environ)
        self._daemon: subprocess.Popen[Any] | None = None
        if self.run("docker", "info", check=False).returncode:
            self._start()

    def _start(self) -> None:
        for program in ("dockerd", "containerd", "docker"):
            need(shutil.which(program), f"a Docker engine ({program})")
        socket = self.directory / "sock"
        with (self.directory / "dockerd.log").open("w") as log:
            self._daemon = subprocess.Popen(
                [
                    "dockerd", "--data-root", str(self.directory / "root"), "--exec-root",
                    str(self.directory / "exec"), "--pidfile", str(self.directory / "pid"),
                    "-H", f"unix://{socket}",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        self.environment["DOCKER_HOST"] = f"unix://{socket}"
        end = time.monotonic() + 30
        while self.run("docker", "info", check=False).returncode:
            if self._daemon.poll() is not None or time.monotonic() > end:
                said = (self.directory / "dockerd.log").read_text()[-500:]
                pytest.skip(f"a Docker engine does not start on this machine: {said}")
            time.sleep(0.5)

    def run(
        self, *command: str, check: bool = True, seconds: float = 900, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True,
            timeout=seconds, check=False, input=stdin,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def close(self) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(60)

    # -- images

    def have_images(self) -> None:
        if not self._pulled(BASE):
            self._make_base()
        if not self._pulled(KAFKA):
            self._make_kafka()

    def _pulled(self, image: str) -> bool:
        if self.run("docker", "image", "inspect", image, check=False).returncode == 0:
            return True
        try:
            return self.run("docker", "pull", "-q", image, check=False, seconds=60).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _make_base(self) -> None:
        need(shutil.which("debootstrap"), "debootstrap, and no image can be pulled")
        base = self.directory / "base"
        packages = "python3,python3-venv,python3-pip,ca-certificates"
        self.run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(base))
        trusted = base / "usr/local/share/ca-certificates"
        trusted.mkdir(parents=True, exist_ok=True)
        pattern = r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----"
        for i, text in enumerate(re.findall(pattern, CA_BUNDLE.read_text(), re.DOTALL)):
            (trusted / f"machine-{i}.crt").write_text(text + "\n")
        self.run("chroot", str(base), "update-ca-certificates")
        if PIP_CONF.exists():
            shutil.copy(PIP_CONF, base / "etc/pip.conf")
        self.run("bash", "-c", f"tar -C {base} -c . | docker import - {BASE}")

    def _make_kafka(self) -> None:
        need(KAFKA_LIBS.exists(), "Kafka's broker: make kafka-libs")
        context = self.directory / "kafka"
        context.mkdir()
        shutil.copytree(KAFKA_LIBS, context / "libs")
        (context / "start").write_text(KAFKA_START)
        (context / "Dockerfile").write_text(KAFKA_DOCKERFILE)
        self.run("docker", "build", "-q", "-t", KAFKA, str(context))
