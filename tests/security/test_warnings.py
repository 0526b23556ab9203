"""The warnings of kproxy at its start: on open listeners and open pages."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kproxy.config.listeners import ListenerConfig
from kproxy.config.server import Config
from kproxy.observe.endpoint import Endpoint
from kproxy.server.served_listener import ServedListener

WARNED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("0.0.0.0", {}, ["listener_unprotected"]),
    ("127.0.0.1", {}, []),
    ("0.0.0.0", {"sasl_mechanisms": ("SCRAM-SHA-256",)}, []),
    ("0.0.0.0", {"sasl_mechanisms": ("SCRAM-SHA-256", "PLAIN")}, ["listener_hears_passwords"]),
    ("127.0.0.1", {"sasl_mechanisms": ("PLAIN",)}, []),
]


@pytest.mark.parametrize(("host", "more", "events"), WARNED)
def test_open_listeners_are_warned_of(host: str, more: dict[str, Any], events: list[str]) -> None:
    protocol = "SASL_PLAINTEXT" if more else "PLAINTEXT"
    listener = ServedListener(
        ListenerConfig(listen=f"{host}:9092", advertise="here:9092", protocol=protocol, **more)
    )
    with capture_logs() as told:
        listener.warn_where_open()
    assert [event["event"] for event in told] == events


@pytest.mark.parametrize("authorizer", ["acl", "none"])
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize("token", [True, False])
async def test_metrics_for_anyone_are_warned_of(
    authorizer: str, host: str, token: bool, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    settings = {"http_token_file": tmp_path / "token"} if token else {}
    config = Config(authorizer=authorizer, http_listen=f"{host}:0", **settings)
    with capture_logs() as told, Endpoint(config).listening():
        pass
    warned = "metrics_unprotected" in [event["event"] for event in told]
    assert warned == (authorizer == "acl" and host == "0.0.0.0" and not token)
