"""Lines of members with an endpoint: the same bytes as kio's writer gives."""

from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_body, encode_with_kio
from kproxy.protocol.written_once import LINES, EndpointLines, endpoint_line

KEY = ApiKey.STREAMS_GROUP_HEARTBEAT
ANSWER: dict[str, Any] = {
    "error_code": 0, "error_message": None, "member_id": "m", "member_epoch": 3,
    "heartbeat_interval": 5000, "acceptable_recovery_lag": 7, "task_offset_interval": 9,
    "status": (), "active_tasks": None, "standby_tasks": None, "warmup_tasks": None,
    "endpoint_information_epoch": 4,
}  # fmt: skip
PARTS = (("q", range(3)), ("größe", (5,)), ("n", ()), ("many", range(300)))
MEMBERS = ((("host", 80), PARTS, ()), (("x" * 200, 65_535), (), PARTS), (("", 0), (), ()))


def told(parts: Any) -> list[dict[str, Any]]:
    return [{"topic": topic, "partitions": tuple(numbers)} for topic, numbers in parts]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("count", [None, 0, 1, 3, 200])
def test_the_same_bytes(version: int, count: int | None) -> None:
    plain: list[dict[str, Any]] | None = None
    lines: EndpointLines | None = None
    if count is not None:
        members = [MEMBERS[number % len(MEMBERS)] for number in range(count)]
        lines = EndpointLines([endpoint_line(*one) for one in members])
        plain = [
            {
                "user_endpoint": {"host": host, "port": port}, "active_partitions": told(active),
                "standby_partitions": told(standby),
            }
            for (host, port), active, standby in members
        ]  # fmt: skip
    ours = encode_body(KEY, version, ANSWER | {LINES: lines})
    assert ours == encode_with_kio(KEY, version, ANSWER | {LINES: plain})
