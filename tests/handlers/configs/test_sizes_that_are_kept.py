"""A setting that this deployment cannot keep is refused, not shown and forgotten."""

from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.types import QueueId
from tests.bodies import change_to, creation
from tests.handlers.test_handlers import Client

LOG, FRAME = "--data-message-bytes-max", "--frame-bytes-max"
SIZE, INVALID = "max.message.bytes", Code.INVALID_CONFIG
ENTRANCE = {
    "kproxy_route_to": "t-{key}", "kproxy_route_unroutable": "odd",
    "kproxy_route_configs": f"{SIZE}:{20 << 20}",
}  # fmt: skip
KAFKA = {"bootstrap_servers": "127.0.0.1:9"}


async def create(client: Client, name: str = "q", **settings: str) -> tuple[int, str]:
    values = creation(name, configs=settings)
    (made,) = (await client.call(ApiKey.CREATE_TOPICS, 7, values)).topics
    return made.error_code, made.error_message or ""


async def alter(client: Client, name: str, **settings: str) -> tuple[int, str]:
    values = change_to(2, name, settings)
    (done,) = (await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)).responses
    return done.error_code, done.error_message or ""


@pytest.mark.parametrize(
    ("server", "settings", "flag"),
    [
        (KAFKA, {"max_message_bytes": str(20 << 20)}, LOG),
        (KAFKA, ENTRANCE, LOG),
        ({}, {"max_message_bytes": str(200 << 20)}, FRAME),
        ({}, {"max_message_bytes": str(20 << 20), "kproxy_delay_ms": "5"}, LOG),
    ],
)
async def test_a_size_that_is_not_kept_is_refused(
    server: dict[str, Any], settings: dict[str, str], flag: str
) -> None:
    client = Client(**server)
    code, message = await create(client, **settings)
    assert code == INVALID
    assert flag in message
    assert (await create(client))[0] == 0
    code, message = await alter(client, "q", **settings)
    assert code == INVALID
    assert flag in message


async def test_a_size_that_is_kept_is_taken() -> None:
    client = Client(**KAFKA)
    assert (await create(client, max_message_bytes=str(9 << 20)))[0] == 0
    embedded = Client()
    assert (await create(embedded, max_message_bytes=str(20 << 20)))[0] == 0
    code, message = await alter(embedded, "q", kproxy_delay_ms="5")
    assert code == INVALID
    assert LOG in message


async def test_a_queue_that_was_given_too_much_before_can_be_changed() -> None:
    client: Any = Client(**KAFKA)
    made = CreateQueue(QueueId(b"q" * 16), "q", 1, {SIZE: str(20 << 20)})
    client.worker.any_shard().apply(made.envelope())
    assert (await alter(client, "q", retention_ms="5"))[0] == 0


async def test_a_default_is_shown_as_it_is_kept() -> None:
    client = Client(**KAFKA, batch_bytes_max=20 << 20)
    await create(client)
    asked = {"resource_type": 2, "resource_name": "q", "configuration_keys": (SIZE,)}
    values = {"resources": [asked], "include_synonyms": False, "include_documentation": False}
    (found,) = (await client.call(ApiKey.DESCRIBE_CONFIGS, 4, values)).results[0].configs
    assert int(found.value) < 10 << 20
