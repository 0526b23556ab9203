"""The commands of docs/security.md take a newcomer from nothing to TLS, logins and permissions."""

import os
import re
import subprocess
import sys
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import ROOT, eventually, free_port, need_program


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    need_program("openssl")
    page = (ROOT / "docs" / "security.md").read_text()
    (commands,) = re.findall(r"## From nothing.*?\n```\n(.*?)```", page, re.S)
    assert len(commands.splitlines()) <= 10
    port = str(free_port())
    commands = commands.replace("9094", port)
    quiet = " --data-dir data --http-listen off & echo $! > pid"
    commands = commands.replace(" --data-dir data &", quiet)
    program = tmp_path / "bin" / "kproxy"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kproxy "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", commands], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
        try:
            assert shell.wait(90) == 0, (tmp_path / "log").read_text()[-3000:]
            alice = dict(
                line.split("=", 1) for line in (tmp_path / "alice.properties").read_text().split()
            )
            alice["ssl.ca.location"] = str(tmp_path / alice["ssl.ca.location"])
            admin = AdminClient(alice | {"bootstrap.servers": f"localhost:{port}"})
            assert not admin.list_topics(timeout=20).topics
            (made,) = admin.create_topics([NewTopic("orders-1", 1)]).values()
            refused = made.exception(20)
            assert isinstance(refused, KafkaException)
            assert refused.args[0].name() == "TOPIC_AUTHORIZATION_FAILED"
        finally:
            if (pid := tmp_path / "pid").exists():
                number = int(pid.read_text())
                os.kill(number, 15)
                eventually(lambda: not Path(f"/proc/{number}/cmdline").exists()
                           or not Path(f"/proc/{number}/cmdline").read_bytes())  # fmt: skip
