"""Requests that make no sense, of one who has some permissions at random: no handler breaks, and
nothing is done that no rule allows."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request, request_schema
from kproxy.protocol.varint import Malformed
from kproxy.security.acls import Binding, Op, Pattern, Resource
from kproxy.security.peer import Peer
from kproxy.server.api_table import RANGES
from kproxy.server.dispatch import accept
from kproxy.server.dispatch import answer as respond
from kproxy.virtual.rows.access import acl_name
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.fakes import chunks_of, memory_worker
from tests.generator import values_of

ALICE = Peer("User:alice", "10.0.0.1")
WAITING = {int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP)}
ROUNDS = 12
KINDS = (Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID)


class Log(list[Any]):
    """A log that is nobody else's."""

    async def catch_up(self) -> None: ...


def rules(rng: random.Random) -> dict[str, dict[str, Any] | None]:
    found = [
        Binding(kind, "kafka-cluster" if kind == Resource.CLUSTER else rng.choice(("*", "fuzz-a")),
                Pattern.LITERAL, "User:alice", "*", rng.choice(list(Op)[2:]), 3)
        for kind in KINDS
        for _ in range(rng.randrange(3))
    ]  # fmt: skip
    return {acl_name(one): {} for one in found}


async def asked(worker: Worker, key: int, version: int, values: Any) -> None:
    accepted = accept(
        worker, encode_request(key, version, 1, values)[4:], ALICE, NextRequestSignal()
    )
    if accepted.call is not None:
        accepted.response()
        return
    given = await respond(worker, accepted)
    if not isinstance(given, bytes | bytearray):
        await chunks_of(given)


@pytest.mark.parametrize("key", [key for key, _, _ in RANGES])
async def test_nonsense_of_one_who_may_some(key: int, tmp_path: Path) -> None:
    rng = random.Random(key)
    low, high = next((low, high) for k, low, high in RANGES if k == key)
    for some in (False, True):
        worker = memory_worker(authorizer="acl", super_users="User:root", data_dir=tmp_path)
        queue, _ = worker.catalogue.create("fuzz-a")
        ids = [UUID(bytes=bytes(queue.queue_id))]
        shard: Any = worker.any_shard()
        shard.log = Log(shard.log)
        for version in range(3 if key == 0 else low, high + 1):
            for _ in range(ROUNDS):
                if some:
                    await worker.secure(rules(rng))
                logged = len(shard.log)
                values = values_of(rng, request_schema(key, version), ids)
                if "max_wait" in values:
                    values["max_wait"] = 0
                with anyio.move_on_after(0.05 if key in WAITING else 10) as scope:
                    with suppress(Malformed):
                        await asked(worker, key, version, values)
                assert key in WAITING or not scope.cancelled_caught
                if not some:  # a client without rights has changed nothing
                    assert len(shard.log) == logged, values
