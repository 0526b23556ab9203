"""The parts that are refused one by one, or say nothing: in slices, as all else."""

from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.handlers.access.users import MECHANISMS
from kproxy.handlers.fetch import list_offsets
from kproxy.handlers.shares import offsets as share_offsets
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.protocol.varint import Malformed
from kproxy.security.acls import Binding, Effect, Op, Pattern, Resource
from kproxy.security.cache import ROWS_MAX
from kproxy.security.peer import Peer
from kproxy.security.scram import of_password
from kproxy.server.dispatch import accept, answer
from kproxy.virtual.rows.access import user_name
from kproxy.worker.request import NextRequestSignal
from tests.handlers.secured import ALICE, EVERY, ROOT, Secured, rule
from tests.held import held_by, slowness

MANY = 150_000
TURN_S = 0.05
"""The time that uncut work holds the loop: such parts cost less than a microsecond."""
GROUPS = rule(Op.ALL, "*", resource_type=Resource.GROUP)


async def call(here: Secured, peer: Peer, key: int, version: int, values: Any) -> Any:
    """Return the answer to a request that held the loop for some milliseconds at a time."""
    frame = encode_request(key, version, 1, values)[4:]
    accepted = accept(here.worker, frame, peer, NextRequestSignal())
    found, held = await held_by(answer(here.worker, accepted))
    assert held < TURN_S * slowness()
    return decode_response(key, version, found[4:])[1]


async def test_offsets_of_a_forbidden_topic_listed() -> None:
    """FAULT: parts of a topic that is forbidden were made in one turn of the loop."""
    here = Secured()
    parts = [{"partition_index": i, "timestamp": -1} for i in range(MANY)]
    values = {"replica_id": -1, "isolation_level": 0, "timeout": 1}
    topics = [{"name": "q", "partitions": parts}]
    told = await call(here, ALICE, ApiKey.LIST_OFFSETS, 10, values | {"topics": topics})
    (topic,) = told.topics
    assert len(topic.partitions) == MANY
    assert {int(part.error_code) for part in topic.partitions} == {29}


SHARED = [{"topic_name": "q", "partitions": range(20)}]
ALTERED = [{"partition_index": index, "start_offset": 0} for index in range(20)]
LISTED = [{"partition_index": index, "timestamp": -1} for index in range(20)]
REFUSED: dict[tuple[ApiKey, int], Any] = {
    (ApiKey.LIST_OFFSETS, 10): {
        "replica_id": -1, "isolation_level": 0, "timeout": 1,
        "topics": [{"name": "q", "partitions": LISTED}],
    },
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0): {"groups": [{"group_id": "g", "topics": SHARED}]},
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0): {
        "group_id": "g", "topics": [{"topic_name": "q", "partitions": ALTERED}],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "version"), REFUSED, ids=lambda value: getattr(value, "name", str(value))
)
async def test_each_refused_part_is_counted(
    key: ApiKey, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: none was, so that they took no memory and never let others have their turn."""
    values = REFUSED[key, version]
    here = Secured()
    await here.add(GROUPS)
    told = await here.call(key, version, values)
    if key == ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS:
        (told,) = told.groups
    (topic,) = told.responses if key == ApiKey.ALTER_SHARE_GROUP_OFFSETS else told.topics
    assert [part.partition_index for part in topic.partitions] == list(range(20))
    assert {int(part.error_code) for part in topic.partitions} == {29}
    here = Secured(answer_bytes_buffered_max=8 << 20)
    await here.add(GROUPS)
    monkeypatch.setattr(list_offsets, "_LISTED_BYTES", 1 << 20)
    monkeypatch.setattr(share_offsets, "_PART_BYTES", 1 << 20)
    with pytest.raises(Malformed, match="answer_bytes_buffered_max"):
        await here.call(key, version, values)


async def test_very_many_filters_that_match_nothing() -> None:
    """FAULT: without a rule no filter was a reason to rest."""
    here = Secured()
    for more, code in (({}, 0), ({"operation": 99}, 42)):
        filters = [EVERY | more | {"resource_name_filter": f"q{n}"} for n in range(60_000)]
        told = await call(here, ROOT, ApiKey.DELETE_ACLS, 3, {"filters": filters})
        assert len(told.filter_results) == 60_000
        assert {int(one.error_code) for one in told.filter_results} == {code}


async def test_very_many_rules_for_which_there_is_no_room() -> None:
    """FAULT: they were counted, refused and let go of in one turn of the loop."""
    here = Secured()
    values = {"creations": [rule(Op.READ, f"q{n}") for n in range(MANY)]}
    told = await call(here, ROOT, ApiKey.CREATE_ACLS, 3, values)
    assert {int(one.error_code) for one in told.results} == {Code.POLICY_VIOLATION}
    assert not here.worker.security.acls.rules


async def test_very_many_users_that_cannot_be_altered() -> None:
    """FAULT: they were looked through before and after the loop that rests."""
    here = Secured()
    gone = [{"name": f"u{n}", "mechanism": 1} for n in range(MANY)]
    values = {"deletions": gone, "upsertions": ()}
    told = await call(here, ROOT, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, values)
    assert [one.user for one in told.results] == [one["name"] for one in gone]
    assert {int(one.error_code) for one in told.results} == {Code.RESOURCE_NOT_FOUND}


async def test_all_of_very_many_users_are_described() -> None:
    """FAULT: all were looked through in one turn of the loop, be only one asked for."""
    here = Secured()
    security = here.worker.security
    value = of_password("SCRAM-SHA-256", b"x").value()
    for number in range(ROWS_MAX // 2):
        for mechanism in MECHANISMS.values():
            security._held[user_name(f"u{number}", mechanism)] = value
    key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    told = await call(here, ROOT, key, 0, {"users": None})
    assert [one.user for one in told.results] == [f"u{n}" for n in range(ROWS_MAX // 2)]
    assert {tuple(i.mechanism for i in one.credential_infos) for one in told.results} == {(1, 2)}
    told = await call(here, ROOT, key, 0, {"users": [{"name": "u7"}, {"name": "none"}]})
    assert [(one.user, int(one.error_code)) for one in told.results] == [("u7", 0), ("none", 91)]


async def test_a_user_who_goes_while_all_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who was there at first and is gone when it is his turn is not told of."""
    here = Secured()
    security = here.worker.security
    for name in ("a", "b"):
        value = of_password("SCRAM-SHA-256", b"x").value()
        security._held[user_name(name, "SCRAM-SHA-256")] = value
    monkeypatch.setattr(security, "credentials", lambda user, _: None if user == "a" else value)
    key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    told = await here.call(key, 0, {"users": None}, ROOT)
    assert [(one.user, int(one.error_code)) for one in told.results] == [("b", 0)]


async def test_ids_of_producers_where_very_many_rules_deny() -> None:
    """FAULT: all rules were walked at each call, in one turn of the loop."""
    here = Secured()
    acls = here.worker.security.acls
    for number in range(ROWS_MAX // 2):
        name = f"{number}"
        for end, effect in (("-", Effect.DENY), ("-x", Effect.ALLOW)):
            acls.add(Binding(
                Resource.TOPIC, name + end, Pattern.PREFIXED, ALICE.principal, "*", Op.WRITE,
                effect,
            ))  # fmt: skip
    values = {"transactional_id": None, "transaction_timeout": 1}

    async def ten() -> set[int]:
        told = [await here.call(ApiKey.INIT_PRODUCER_ID, 4, values) for _ in range(10)]
        return {int(one.error_code) for one in told}

    codes, held = await held_by(ten())
    assert codes == {Code.CLUSTER_AUTHORIZATION_FAILED}
    assert held < TURN_S * slowness()
