"""The settings of the clients of the cluster."""

from kproxy.config.server import Config
from kproxy.upstream.settings import Connectivity, Upstream


def upstream(**client: str) -> Upstream:
    return Upstream(servers="a:1", prefix="p", client=client, connectivity=Connectivity("a:1"))


def test_a_connection_that_says_nothing_is_given_up_before_a_record_is() -> None:
    """FAULT: it was kept for 60 s, and records were refused once the network had forgotten it."""
    settings = upstream().settings()
    delivery_ms = Config.model_fields["delivery_ms_max"].default
    for name in ("socket.timeout.ms", "socket.connection.setup.timeout.ms"):
        assert 2 * settings[name] <= delivery_ms


def test_a_file_of_settings_may_say_another_time() -> None:
    settings = upstream(**{"socket.timeout.ms": "30000"}).reading("x")
    assert settings["socket.timeout.ms"] == "30000"
