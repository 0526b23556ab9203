"""`kproxy users add`: what it says of the way that a password goes."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kproxy.tools import users
from kproxy.tools.users import users_command


@pytest.mark.parametrize(
    ("server", "settings", "warns"),
    [
        ("kproxy.example:9092", "", True),
        ("kproxy.example:9092", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
         "sasl.username=a\nsasl.password=b\n", True),
        ("kproxy.example:9092", "security.protocol=SSL\n", False),
        ("127.0.0.1:9092", "", False),
    ],
)  # fmt: skip
def test_a_password_that_would_be_heard_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, settings: str, warns: bool
) -> None:
    """FAULT: the salted password, as good as the password, went over the network in silence."""
    sent: list[Any] = []
    monkeypatch.setattr(users, "asked", lambda address, ask: sent.append(address))
    arguments = ["add", "alice", "--bootstrap-server", server]
    if settings:
        file = tmp_path / "client.properties"
        file.write_text(settings)
        arguments += ["--command-config", str(file)]
    done = CliRunner().invoke(users_command, arguments, input="secret\n")
    assert done.exit_code == 0, done.output
    assert len(sent) == 1
    assert ("not encrypted" in done.output) == warns
