"""Ids that coordinators make."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.coordinator import Coordinator


@pytest.mark.parametrize("client_id", ["rdkafka", "é" * 16_383])
def test_a_member_id_fits_an_answer_whatever_the_client_calls_itself(client_id: str) -> None:
    """FAULT: 16 bits had no room for a client id of as many bytes as a request may have, and 37."""
    coordinator = SimpleNamespace(unique_id=lambda: "u" * 36)
    made = Coordinator.new_member_id(cast(Any, coordinator), client_id)
    assert made.endswith("-" + "u" * 36)
    assert made[:5] == client_id[:5]
    assert len(made.encode()) < 1 << 15


def test_message_for_a_person_fits_an_answer() -> None:
    error = KafkaError(Code.INVALID_REQUEST, "no " + "é" * 32_000)
    assert error.message is not None
    assert len(error.message.encode()) < 1 << 15
