"""SECURE: rows are put and dropped in one step, and stand as of their log offset."""

from kproxy.virtual.commands.access import Secure
from kproxy.virtual.rows.access import (
    Secured,
    acl_name,
    acl_of,
    decode_secured,
    quota_name,
    quota_of,
    user_name,
    user_of,
)
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import name_of
from tests.fakes import MemoryShard


def rows_of(shard: MemoryShard) -> dict[str, Secured]:
    found = shard.state.scan(*RowKind.SECURED.range())
    return {name_of(key): decode_secured(value) for key, value in found}


def test_rows_are_put_and_dropped() -> None:
    shard = MemoryShard()
    shard.apply(Secure({"Aa": {}, "Ub": {"v": 1}}).envelope())
    assert rows_of(shard) == {"Aa": Secured({}, 0), "Ub": Secured({"v": 1}, 0)}
    shard.apply(Secure({"Aa": None, "Ub": {"v": 2}, "Qc": {"value": 3.5}}).envelope())
    assert rows_of(shard) == {"Ub": Secured({"v": 2}, 1), "Qc": Secured({"value": 3.5}, 1)}
    shard.apply(Secure({"Anobody": None}).envelope())
    assert len(rows_of(shard)) == 2


def test_names_read_as_they_were_written() -> None:
    assert acl_of(acl_name((2, 'q"\n:', 3, "User:ä", "*", 3, 3))) == [
        2,
        'q"\n:',
        3,
        "User:ä",
        "*",
        3,
        3,
    ]
    assert user_of(user_name("a:b", "SCRAM-SHA-256")) == ("a:b", "SCRAM-SHA-256")
    entity = (("client-id", None), ("user", "a"))
    assert quota_of(quota_name(reversed(entity), "k")) == (entity, "k")
    assert quota_name(entity, "k") == quota_name(reversed(entity), "k")
