"""Each API at every version that is advertised: whole answers, as a real Kafka 4.3.1 gives them.

An answer may depend on the request's version, beside its schema, and only old clients ask for old
versions.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.server.api_table import TABLE
from tests.harness import ROOT, Served, eventually, served
from tests.kafka.alike import same
from tests.kafka.at_versions import admin, groups, records, shares, transactions
from tests.kafka.at_versions.asked import Asked, versions
from tests.kafka.at_versions.differences import DIFFERENCES, without
from tests.kafka.canonical import unheard
from tests.kafka.conftest import FLAGS
from tests.kafka.groups.members import ready
from tests.kafka.recorded import Recorded, Target
from tests.wire import Wire

MODULES = (records, groups, transactions, shares, admin)
SITUATIONS = dict(chain.from_iterable(module.SITUATIONS.items() for module in MODULES))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return one kproxy: what depends on the version is the same on a Kafka."""
    with served(tmp_path_factory.mktemp("data"), *FLAGS) as running:
        yield running


def script(wire: Wire, name: str, api: ApiKey) -> list[Any]:
    with unheard():
        coordinators(wire)
    asked = Asked(wire, name)
    SITUATIONS[api](asked)
    if api == ApiKey.PRODUCE:
        transactions.produce_within(asked)
    assert asked.seen[api] == set(versions(api))
    return asked.said


def coordinators(wire: Wire) -> None:
    """Wait until there are coordinators: a real Kafka makes their topics when first asked."""
    ready(wire)
    wire.call(ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ("any",)})
    values = {"transactional_id": "any", "transaction_timeout": 1000}
    eventually(lambda: wire.call(ApiKey.INIT_PRODUCER_ID, 4, values).error_code == 0)


@pytest.mark.parametrize("api", SITUATIONS, ids=lambda api: api.name.lower())
def test_answers(recorded: Recorded, server: Served, api: ApiKey) -> None:
    def ask(target: Target) -> list[Any]:
        with Wire(target.host, target.port) as wire:
            return script(wire, recorded.name, api)

    theirs, ours, differing = without(*recorded.both(ask, server))
    same(theirs, ours)
    name = api.name.lower()
    known = {one for one in DIFFERENCES if one.situation.partition(":")[0] == name}
    assert known == differing, "a difference is there no more"


def test_every_advertised_api_is_asked() -> None:
    assert {int(api) for api in SITUATIONS} == {key for key in TABLE if versions(ApiKey(key))}


def test_each_difference_is_documented() -> None:
    told = " ".join((ROOT / "docs" / "kafka-differences.md").read_text().split())
    assert [one.reason for one in DIFFERENCES if one.reason not in told] == []
