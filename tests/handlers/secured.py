"""A worker with access rules, one super user, and Alice."""

from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.security.acls import Effect, Op, Pattern, Resource
from kproxy.security.peer import Peer
from kproxy.server.dispatch import accept, answer
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.bodies import change_to
from tests.fakes import chunks_of, memory_worker
from tests.wire import batch, produce_values

ROOT, ALICE = Peer("User:root", "10.0.0.9"), Peer("User:alice", "10.0.0.1")
NOT_ALLOWED = 29
EVERY: dict[str, Any] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


class Secured:
    """A worker with rules, one super user, and Alice."""

    def __init__(self, **settings: Any) -> None:
        self.worker: Worker = memory_worker(
            authorizer="acl", super_users="User:root", **settings
        )  # fmt: skip

    async def call(
        self, key: int, version: int, values: Any, peer: Peer = ALICE, search: bytes = b""
    ) -> Any:
        frame = encode_request(key, version, 1, values, search)[4:]
        accepted = accept(self.worker, frame, peer, NextRequestSignal())
        if accepted.call is not None:
            given: Any = accepted.response()
        else:
            given = await answer(self.worker, accepted)
            if not isinstance(given, bytes | bytearray):
                given = b"".join(await chunks_of(given))
        return decode_response(key, version, bytes(given)[4:])[1]

    async def add(self, *rules: dict[str, Any], peer: Peer = ROOT) -> list[int]:
        told = await self.call(ApiKey.CREATE_ACLS, 3, {"creations": rules}, peer)
        return [int(result.error_code) for result in told.results]

    async def drop(self, **more: Any) -> Any:
        values = {"filters": [EVERY | more]}
        return await self.call(ApiKey.DELETE_ACLS, 3, values, ROOT)

    async def rules(self, peer: Peer = ROOT, **more: Any) -> Any:
        return await self.call(ApiKey.DESCRIBE_ACLS, 3, EVERY | more, peer)

    async def produce(self, queue: str, peer: Peer = ALICE) -> int:
        told = await self.call(ApiKey.PRODUCE, 9, produce_values(queue, batch(b"v")), peer)
        return int(told.responses[0].partition_responses[0].error_code)


def rule(op: Op, name: str = "q", **more: Any) -> dict[str, Any]:
    return {
        "resource_type": Resource.TOPIC, "resource_name": name, "host": "*",
        "resource_pattern_type": Pattern.LITERAL, "principal": ALICE.principal, "operation": op,
        "permission_type": Effect.ALLOW, **more,
    }  # fmt: skip


async def settings(
    here: Secured, kind: int, name: str, peer: Peer = ALICE, **values: str | None
) -> int:
    """Send IncrementalAlterConfigs; None deletes."""
    asked = change_to(kind, name, values)
    told = await here.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, asked, peer)
    return int(told.responses[0].error_code)
