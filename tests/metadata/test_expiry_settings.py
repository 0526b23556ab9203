"""Settings of what goes by itself: bounds, conflicts, levels."""

import pytest

from kproxy.common.errors import KafkaError
from kproxy.metadata.levels import Level
from kproxy.metadata.queue_settings import check, check_together, settings_of
from kproxy.metadata.route_settings import partitions_conflict

IDLE = "kproxy.expire.idle.ms"


@pytest.mark.parametrize("wrong", ["0", "59999", "-2", "x", ""])
def test_an_idle_time_under_a_minute_is_refused_with_the_least(wrong: str) -> None:
    with pytest.raises(KafkaError, match=r"60000 at least|whole number"):
        check({IDLE: wrong})
    assert check({IDLE: "60000"}) == {IDLE: "60000"}
    assert settings_of({IDLE: "60000"}).expires_idle_ms == 60_000
    assert settings_of({}).expires_idle_ms == -1


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(KafkaError, match="has no effect without"):
        check_together({"kproxy.expire.with.records": "true"}, Level())
    with pytest.raises(KafkaError, match="needs level 9"):
        check_together({IDLE: "60000"}, Level(8))
    assert "1 partition, not 2" in (partitions_conflict({IDLE: "60000"}, 2) or "")


def test_queues_that_a_route_makes_may_expire() -> None:
    kept = check({"kproxy.route.configs": f"{IDLE}:60000"})
    assert kept == {"kproxy.route.configs": f"{IDLE}:60000"}
    with pytest.raises(KafkaError, match="60000 at least"):
        check({"kproxy.route.configs": f"{IDLE}:5"})


def test_a_number_of_kept_records_is_one_at_least() -> None:
    for wrong in ("0", "-2", "x"):
        with pytest.raises(KafkaError, match=r"1 at least|whole number"):
            check({"kproxy.retention.records": wrong})
    assert settings_of({"kproxy.retention.records": "7"}).retention_records == 7
    assert settings_of({}).retention_records == -1
    compacted = {"kproxy.retention.records": "7", "cleanup.policy": "compact"}
    assert settings_of(compacted).retention_records == -1
