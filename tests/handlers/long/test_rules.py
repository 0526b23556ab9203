"""Many rules, and requests that name very much to who may little: in slices, as all else."""

from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.security.peer import Peer
from kproxy.server.dispatch import accept
from kproxy.server.dispatch import answer as respond
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.bodies import metadata
from tests.fakes import chunks_of, memory_worker
from tests.handlers.secured import ALICE, EVERY, ROOT, rule
from tests.held import HELD_S, held_by, slowness
from tests.wire import fetch_values

MANY = 20_000


async def call(worker: Worker, peer: Peer, key: int, version: int, values: Any) -> Any:
    frame = encode_request(key, version, 1, values)[4:]

    async def answered() -> bytes:
        found: Any = await respond(worker, accept(worker, frame, peer, NextRequestSignal()))
        if not isinstance(found, bytes | bytearray):
            found = b"".join(await chunks_of(found))
        return bytes(found)

    found, held = await held_by(answered())
    assert held < HELD_S * slowness()
    return decode_response(key, version, found[4:])[1]


def secured() -> Worker:
    return memory_worker(authorizer="acl", super_users="User:root")


async def test_very_many_rules_are_made_told_and_dropped_in_slices() -> None:
    worker = secured()
    values = {"creations": [rule(3, f"q{n}") for n in range(MANY)]}  # type: ignore[arg-type]
    told = await call(worker, ROOT, ApiKey.CREATE_ACLS, 3, values)
    assert {int(one.error_code) for one in told.results} == {0}
    assert len(worker.security.acls) == MANY
    found = await call(worker, ROOT, ApiKey.DESCRIBE_ACLS, 3, EVERY)
    assert len(found.resources) == MANY
    gone = await call(worker, ROOT, ApiKey.DELETE_ACLS, 3, {"filters": [EVERY, EVERY]})
    assert [len(one.matching_acls) for one in gone.filter_results] == [MANY, MANY]
    assert not len(worker.security.acls)


async def test_there_is_a_most_of_rules() -> None:
    worker = secured()
    values = {"creations": [rule(3, f"q{n}") for n in range(100_001)]}  # type: ignore[arg-type]
    told = await call(worker, ROOT, ApiKey.CREATE_ACLS, 3, values)
    assert {int(one.error_code) for one in told.results} == {44}
    assert not len(worker.security)


async def test_client_without_rights_names_very_much() -> None:
    worker = secured()
    names = [f"q{n}" for n in range(MANY)]
    asked = metadata(names, rights=True)
    told = await call(worker, ALICE, ApiKey.METADATA, 12, asked)
    assert {int(topic.error_code) for topic in told.topics} == {29}
    fetched = await call(worker, ALICE, 1, 12, fetch_values({(name, 0): 0 for name in names}))
    assert {int(t.partitions[0].error_code) for t in fetched.responses} == {29}
    creations = [rule(3, name) for name in names]  # type: ignore[arg-type]
    refused = await call(worker, ALICE, ApiKey.CREATE_ACLS, 3, {"creations": creations})
    assert {int(one.error_code) for one in refused.results} == {31}
    assert worker.authorizer.permits(ALICE).log.refusals > 2 * MANY
    assert next(worker.catalogue.all(), None) is None
