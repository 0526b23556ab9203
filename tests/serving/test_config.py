"""Settings: what is wrong is said in a line, which shows no secret."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from kproxy.common.errors import BadConfig
from kproxy.config.server import Config, _one_line, load


def refused(**flags: Any) -> str:
    with pytest.raises(BadConfig) as error:
        load(flags, None, {})
    return str(error.value)


def test_a_wrong_value_is_shown() -> None:
    assert refused(sync="often") == "--sync often: write always, never or interval:MS"
    assert len(refused(sync="x" * 10_000)) < 500


def test_a_value_that_holds_others_is_not_shown() -> None:
    assert "hidden" not in refused(listen={"password": "hidden"})


@pytest.mark.parametrize(
    "name", ["sasl_password", "client_secret", "oauth_token", "ssl_key", "credentials"]
)
def test_a_wrong_secret_is_not_shown(name: str) -> None:
    model: Any = type("Secrets", (BaseModel,), {"__annotations__": {name: int}})
    with pytest.raises(ValidationError) as error:
        model(**{name: "hidden"})
    line = _one_line(error.value)
    assert "hidden" not in line
    assert line.startswith("--" + name.replace("_", "-") + ": ")


def test_a_consumer_of_a_hundred_thousand_queues_is_within_the_bound() -> None:
    assert Config().request_elements_max >= 2 * 100_000 + 1


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"retention_check_ms": 86_400_001}, "--retention-check-ms 86400001: "),
        ({"data_message_bytes_max": 999}, "--data-message-bytes-max 999: "),
        ({"data_message_bytes_max": "1.5GB"}, "--data-message-bytes-max 1.5GB: "),
        ({"partitions_default": 3, "partitions_max": 2}, "--partitions-default 3 is more than "),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(flags: dict[str, Any], line: str) -> None:
    """FAULT: accepted, and then a trace, a busy loop, or a limit that did not hold."""
    with pytest.raises(BadConfig) as refused:
        load(flags, None, {})
    assert str(refused.value).startswith(line)
