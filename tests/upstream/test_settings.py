"""The settings of librdkafka's clients."""

from kproxy.config.server import Config
from kproxy.upstream.settings import Connectivity, Upstream


def test_a_broker_that_hangs_is_given_up_while_an_envelope_has_time_for_another() -> None:
    """FAULT: after a minute; what was under way to a leader that stood still was given up first."""
    site = Upstream(servers="", prefix="t", client={}, connectivity=Connectivity(""))
    silent_ms = site.settings()["socket.timeout.ms"]
    assert silent_ms <= Config(bootstrap_servers="-").delivery_ms_max / 2


def test_the_operators_settings_come_first() -> None:
    own = {"socket.timeout.ms": "30000"}
    site = Upstream(servers="", prefix="t", client=own, connectivity=Connectivity(""))
    assert site.settings()["socket.timeout.ms"] == "30000"
