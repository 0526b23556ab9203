"""Rows of security as a worker has them in memory."""

from typing import Any

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.metadata.catalogue import StateLookup
from kproxy.security.acls import Binding
from kproxy.security.cache import SecurityCache
from kproxy.security.scram import OURS, of_password
from kproxy.virtual.rows.access import acl_name, quota_name, user_name
from tests.fakes import memory_worker

RULE = Binding(2, "q", 3, "User:a", "*", 3, 3)


async def test_all_is_followed_and_told() -> None:
    worker = memory_worker()
    cache, told = worker.security, list[Any]()
    cache.on_change.append(lambda name, value: told.append((name, value)))
    user, acl = user_name("u", "M"), acl_name(RULE)
    value = of_password("SCRAM-SHA-256", b"x").value()
    quota = quota_name([("user", "u")], "producer_byte_rate")
    await worker.secure({user: value, acl: {}, quota: {"value": 2}})
    assert cache.credentials("u", "M") == value
    assert cache.credentials("u", "N") is None
    assert cache.shapes["M"] == {OURS: 1}
    assert set(cache.names()) == {user_name("u", "M"), acl, quota}
    assert list(cache.acls.rules) == [RULE]
    assert cache.quotas == {(("user", "u"),): {"producer_byte_rate": 2.0}}
    assert cache.generation == 1, "of rules alone"
    assert len(told) == 3
    await worker.secure({acl: {}})  # as it was
    assert cache.generation == 1
    again = SecurityCache(StateLookup(worker.any_shard().state))
    assert list(again.acls.rules) == [RULE]
    assert again.quotas == cache.quotas
    await worker.secure({user: None, acl: None, quota: None})
    assert not len(cache)
    assert not cache.quotas
    assert not len(cache.acls)
    assert told[-1][1] is None
    assert cache.shapes["M"] == {}
    assert cache.generation == 2


async def test_rows_that_no_kproxy_wrote_are_left_out() -> None:
    worker = memory_worker()
    rules = ("", "{}", "[1]", '[2,"q",9,"User:a","*",3,3]', '[2,"q",3,"User:a","*",3,9]',
             '[2,3,3,"User:a","*",3,3]', '[99,"q",3,"User:a","*",3,3]')  # fmt: skip
    for name in (*(f"A{rule}" for rule in rules), "Q[]", "Ua:b", "S", "Zz"):
        await worker.secure({name: {}})
        assert not len(worker.security), name
    assert worker.security.generation == 0


async def test_a_secret_is_made_with_the_first_user() -> None:
    worker, user = memory_worker(), user_name("u", "SCRAM-SHA-256")
    cache = worker.security
    secret = cache.salt_secret
    assert memory_worker().security.salt_secret != secret, "nobody else has it"
    row = {user: of_password("SCRAM-SHA-256", b"x").value()}
    await worker.secure(cache.beside_users() | row)
    assert cache.salt_secret == secret
    assert not cache.beside_users()
    again = SecurityCache(StateLookup(worker.any_shard().state))
    assert again.salt_secret == secret
    assert again.shapes == {"SCRAM-SHA-256": {OURS: 1}}


async def test_below_the_level_nothing_is_kept() -> None:
    worker = memory_worker()
    worker.level.value = 6
    with pytest.raises(KafkaError) as refused:
        await worker.secure({"Ua:b": {}})
    assert refused.value.code == Code.UNSUPPORTED_VERSION
