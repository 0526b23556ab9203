"""franz-go, sarama and kafkajs log in by each mechanism over TLS, as those in test_security.py do.

The programs are go/logins/main.go and node/logins.js.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.libraries.test_more_clients import go, node
from tests.clients.security.secured import KINDS, running
from tests.securing import LOGINS, PASSWORD, Site

pytestmark = pytest.mark.long

__all__ = ["go", "node"]  # fixtures

LOGIN_MS = 60_000
"""kafkajs logs in again before each request in the last 10 s of a login."""


@pytest.fixture(scope="module", params=KINDS)
def secured(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(request.param, tmp_path_factory.mktemp("site"), LOGIN_MS) as site:
        yield site


def logs_in(site: Site, mechanism: str, directory: Path, *command: str) -> None:
    token = site.issuer.token("carol")
    own = {
        "certificate": {"CERTIFICATE": str(site.carls)}, "OAUTHBEARER": {"SECRET": token},
    }.get(mechanism, {"USER_NAME": "alice", "SECRET": PASSWORD})  # fmt: skip
    address = site.address("MUTUAL" if mechanism == "certificate" else "OUTSIDE")
    queue = f"{Path(command[1]).stem}-{mechanism}".lower()
    done = subprocess.run(
        [*command, mechanism, address, queue], capture_output=True, text=True, timeout=90,
        env=os.environ | own | {"CA": str(site.authority.ca)}, cwd=directory, check=False,
    )  # fmt: skip
    assert done.stdout == "[one two]\n", done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("mechanism", LOGINS)
def test_franz_go(secured: Site, go: Path, mechanism: str) -> None:
    logs_in(secured, mechanism, go, str(go / "logins"), "franz")


@pytest.mark.parametrize("mechanism", LOGINS)
def test_sarama(secured: Site, go: Path, mechanism: str) -> None:
    logs_in(secured, mechanism, go, str(go / "logins"), "sarama")


@pytest.mark.parametrize("mechanism", LOGINS)
def test_kafkajs(secured: Site, node: Path, mechanism: str) -> None:
    logs_in(secured, mechanism, node, "node", "logins.js")
