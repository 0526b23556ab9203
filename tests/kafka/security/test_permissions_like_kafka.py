"""The matrix: every API under every single permission, at a real Kafka with its StandardAuthorizer
and at kproxy. Codes about permissions, and what is shown, are the same.

Kafka is asked over SASL by Alice, and made ready by a super user. kproxy is asked as Alice within
this process: how she logs in is tested elsewhere.
"""

import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest

from kproxy.config.server import Config
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.security.acls import Binding
from kproxy.security.peer import Peer
from kproxy.server.api_table import TABLE
from kproxy.server.dispatch import accept, answer
from kproxy.virtual.rows.access import acl_name
from kproxy.worker.embedded import embedded
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.fakes import chunks_of
from tests.harness import eventually, free_port
from tests.kafka.canonical import Requests, digest
from tests.kafka.groups.members import commit, commit_values
from tests.kafka.recorded import Recorded
from tests.kafka.security.permissions import (
    ALICE,
    CASES,
    DOOMED,
    GRANTS,
    GROUP,
    OTHER,
    TOPIC,
    TXN,
    Case,
    Grant,
    Ids,
    compared,
    said,
)
from tests.real_kafka import Kafka
from tests.wire import Wire, batch, produce_values

Answers = dict[str, dict[str, list[str]]]
"""The grants by case, and the answers with them."""


def test_every_api_is_in_the_matrix() -> None:
    assert {int(case.key) for case in CASES} >= set(TABLE) - OF_LOGIN - OF_LATER


OF_LOGIN = {17, 36}  # SaslHandshake, SaslAuthenticate: before there is anybody to be allowed
OF_LATER = {93}  # Kafka 4.4's; tests/handlers/access has a test of it


def named(case: Case) -> str:
    return f"{case.key.name} {case.what}".strip()


def granted(grants: tuple[Grant, ...]) -> str:
    return ", ".join(map(str, grants)) or "nothing"


# -- at Kafka


class SecuredKafka:
    """A Kafka where who comes by PLAINTEXT is a super user, and who comes by CLIENT is asked."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.wires: list[Wire] = []
        more = f"""
listeners=PLAINTEXT://127.0.0.1:PORT,CLIENT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:CONTROLLER_AT
advertised.listeners=PLAINTEXT://127.0.0.1:PORT,CLIENT://127.0.0.1:{self.port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.client.sasl.enabled.mechanisms=PLAIN
listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule\
 required user_alice="secret";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
        self.kafka = Kafka(directory, more=more)
        try:
            self.kafka.wait_ready()
            self.admin = Wire("127.0.0.1", self.kafka.port)
            self.ids = made_ready(self.admin)
        except BaseException:
            self.kafka.stop()
            raise

    def alice(self) -> Wire:
        wire = Wire("127.0.0.1", self.port)
        self.wires.append(wire)
        wire.call(17, 1, {"mechanism": "PLAIN"})
        answered = wire.call(36, 1, {"auth_bytes": b"\0alice\0secret"})
        assert int(answered.error_code) == 0
        return wire

    def grant(self, grants: tuple[Grant, ...]) -> None:
        every = {
            "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
            "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
        }  # fmt: skip
        self.admin.call(ApiKey.DELETE_ACLS, 3, {"filters": [every]})
        if grants:
            made = self.admin.call(
                ApiKey.CREATE_ACLS, 3, {"creations": [one.creation for one in grants]}
            )
            assert not any(int(result.error_code) for result in made.results)

        def in_force() -> bool:
            found = self.admin.call(ApiKey.DESCRIBE_ACLS, 3, every)
            return sum(len(one.acls) for one in found.resources) == len(grants)

        eventually(in_force)

    def answers(self) -> Answers:
        found: Answers = {}
        wire = self.alice()
        for grants in GRANTS:
            self.grant(grants)
            self.admin.create(DOOMED)
            self.ids[DOOMED] = id_of(self.admin, DOOMED)
            for case in CASES:
                try:
                    told = said(wire.call(case.key, case.version, case.values(self.ids)), self.ids)
                except ConnectionError:
                    told, wire = ["closed"], self.alice()
                found.setdefault(named(case), {})[granted(grants)] = compared(case, told)
        return found


def id_of(wire: Wire, name: str) -> UUID:
    def found() -> UUID | None:
        (topic,) = wire.metadata(name, create=False).topics
        return UUID(bytes=topic.topic_id.bytes) if int(topic.error_code) == 0 else None

    there: UUID = eventually(found)
    return there


def made_ready(wire: Wire) -> Ids:
    """Make two topics with a record each, and offsets of a group in both."""
    ids: Ids = {}
    for name in (TOPIC, OTHER):
        wire.create(name)
        eventually(lambda n=name: wire.produce(n, batch(b"v")).error_code == 0)
        ids[name] = id_of(wire, name)

    def committed() -> bool:
        for kind, key in ((0, GROUP), (1, TXN)):  # Kafka makes its own topics by that
            wire.call(ApiKey.FIND_COORDINATOR, 6, {"key_type": kind, "coordinator_keys": [key]})
        return all(commit(wire, GROUP, name, 0) == 0 for name in (TOPIC, OTHER))

    eventually(committed)
    return ids


def at_kafka(directory: Path) -> Answers:
    secured = SecuredKafka(directory)
    try:
        return secured.answers()
    finally:
        for wire in (secured.admin, *secured.wires):
            wire.socket.close()
        secured.kafka.stop()


def asked() -> str:
    """Return the digest of all cases under all grants."""
    requests = Requests()
    ids = {name: UUID(int=number) for number, name in enumerate((TOPIC, OTHER, DOOMED))}
    for case in CASES:
        requests.hear(case.key, case.version, case.values(ids))
    return f"{requests.digest()} {digest(repr((list(map(named, CASES)), GRANTS)))}"


def by_answer(answers: Answers) -> dict[str, list[tuple[list[str], list[str]]]]:
    """Return the answers to each case, the commonest first, and grants that have others."""
    found: dict[str, list[tuple[list[str], list[str]]]] = {}
    for case, told in answers.items():
        lists: dict[tuple[str, ...], list[str]] = {}
        for grants, one in told.items():
            lists.setdefault(tuple(one), []).append(grants)
        first, *others = sorted(lists.items(), key=lambda item: -len(item[1]))
        found[case] = [(list(first[0]), []), *((list(one), grants) for one, grants in others)]
    return found


def told_by(answers: list[tuple[list[str], list[str]]], grants: str) -> list[str]:
    return next((told for told, listed in answers if grants in listed), answers[0][0])


# -- at kproxy


async def called(worker: Worker, peer: Peer, key: int, version: int, values: Any) -> Any:
    frame = encode_request(key, version, 1, values)[4:]
    accepted = accept(worker, frame, peer, NextRequestSignal())
    if accepted.call is not None:
        call = accepted.call
        await worker_settled(call)
        response = accepted.response()
    else:
        given = await answer(worker, accepted)
        if not isinstance(given, bytes | bytearray):
            given = b"".join(await chunks_of(given))
        response = bytes(given)
    assert response is not None
    (length,) = struct.unpack_from(">i", response)
    assert length == len(response) - 4
    return decode_response(key, version, response[4:])[1]


async def worker_settled(call: Any) -> None:
    done = anyio.Event()
    call.add_done_callback(done.set)
    await done.wait()


async def test_every_permission_is_what_it_is_at_kafka(
    recorded: Recorded, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs = recorded.theirs(lambda: by_answer(at_kafka(tmp_path_factory.mktemp("kafka"))), asked())
    assert theirs.asked == asked(), "Kafka was asked something else: make record"
    config = Config(
        data_dir=tmp_path, authorizer="acl", super_users="User:root", sync="never",
        group_initial_rebalance_delay_ms=0,
    )  # fmt: skip
    root, alice = Peer("User:root", "127.0.0.1"), Peer(ALICE, "127.0.0.1")
    different: list[str] = []
    async with embedded(config, ("127.0.0.1", 9092)) as worker:
        ids = await ready_here(worker, root)
        rules: dict[str, Any] = {}
        for grants in GRANTS:
            await worker.secure(dict.fromkeys(rules))
            rules = {acl_name(rule_of(one)): {} for one in grants}
            await worker.secure(rules)
            if worker.catalogue.find(DOOMED) is None:
                queue, ticket = worker.catalogue.create(DOOMED)
                await ticket.wait()
                ids[DOOMED] = UUID(bytes=bytes(queue.queue_id))
            for case in CASES:
                ours = compared(case, said(
                    await called(worker, alice, case.key, case.version, case.values(ids)), ids
                ))  # fmt: skip
                told = told_by(theirs.said[named(case)], granted(grants))
                if ours != told:
                    different.append(
                        f"{granted(grants)} | {named(case)}\n   Kafka  {told}\n   kproxy {ours}"
                    )
    assert not different, f"{len(different)} answers differ:\n" + "\n".join(different)


def rule_of(grant: Grant) -> Binding:
    made = grant.creation
    return Binding(
        int(made["resource_type"]), made["resource_name"], int(made["resource_pattern_type"]),
        made["principal"], made["host"], int(made["operation"]), made["permission_type"],
    )  # fmt: skip


async def ready_here(worker: Worker, root: Peer) -> Ids:
    """Make the same as `made_ready`."""
    ids: Ids = {}
    for name in (TOPIC, OTHER):
        queue, ticket = worker.catalogue.create(name)
        await ticket.wait()
        ids[name] = UUID(bytes=bytes(queue.queue_id))
        values = produce_values(name, batch(b"v"))
        told = await called(worker, root, ApiKey.PRODUCE, 9, values)
        assert int(told.responses[0].partition_responses[0].error_code) == 0
        values = commit_values(GROUP, name, 0)
        told = await called(worker, root, ApiKey.OFFSET_COMMIT, 9, values)
        assert int(told.topics[0].partitions[0].error_code) == 0
    return ids
