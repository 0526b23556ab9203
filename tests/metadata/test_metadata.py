import base64
import json
from pathlib import Path

import mmh3
import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.metadata import queue_settings
from kproxy.metadata.catalogue import QueueIds, StateLookup, home_of
from kproxy.metadata.cluster_view import DirectoryUpgrades, open_identity
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.partitioner import name_fault, shard_of
from kproxy.virtual.types import ShardId
from tests.fakes import MemoryShard, memory_worker


def test_creations_on_their_way_are_shared() -> None:
    class Slow:
        done = False

    from kproxy.metadata.catalogue import Catalogue

    appended: list[object] = []

    def decide(name: str, envelope: object) -> Slow:
        appended.append(envelope)
        return Slow()

    catalogue: Catalogue[Slow] = Catalogue(StateLookup(MemoryShard().state), decide, 1, QueueIds(1))
    first = catalogue.create("q")
    assert catalogue.create("q") == first
    assert catalogue.exists("q")
    assert catalogue.find("q") is None
    assert len(appended) == 1
    for i in range(3000):
        catalogue.create(f"q{i}")
    assert len(appended) == 3001


def test_a_bad_name_is_not_created() -> None:
    with pytest.raises(KafkaError) as refused:
        memory_worker().catalogue.create("a/b")
    assert refused.value.code == Code.INVALID_TOPIC_EXCEPTION


def test_ids_are_unlike() -> None:
    made = {QueueIds(64).new(ShardId(i % 64)): i % 64 for i in range(1000)}
    assert len(made) == 1000
    assert all(home_of(queue_id, 64) == home for queue_id, home in made.items())


@pytest.mark.parametrize("time_ns", [0, -1, 1_790_000_000_000_000_000, (1 << 63) - 1])
def test_ids_are_in_order_of_creation_and_fit_whatever_the_clock_says(
    time_ns: int,
) -> None:
    time_ms = time_ns // 1_000_000
    first = QueueIds(8, lambda: time_ms).new(ShardId(3))
    assert not base64.urlsafe_b64encode(first).startswith(b"-")
    assert home_of(first, 8) == 3
    if 0 < time_ns < 1 << 62:
        assert first < QueueIds(8, lambda: time_ms + 1).new(ShardId(1))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ({"retention.ms": "5"}, {"retention.ms": "5"}),
        ({"retention.ms": None}, {}),
    ],
)
def test_settings_kept(given: dict[str, str | None], kept: dict[str, str]) -> None:
    assert queue_settings.check(given) == kept


@pytest.mark.parametrize(
    "given",
    [{"no.such": "1"}, {"retention.ms": "soon"}, {"cleanup.policy": "shred"},
     {"max.message.bytes": "-1"}, {"compression.type": "none"}],
)  # fmt: skip
def test_settings_refused_with_a_line(given: dict[str, str | None]) -> None:
    with pytest.raises(KafkaError) as refused:
        queue_settings.check(given)
    assert refused.value.code == Code.INVALID_CONFIG
    assert next(iter(given)) in str(refused.value)


def test_the_identity_is_made_once_and_checked(tmp_path: Path) -> None:
    first, level = open_identity(tmp_path)
    assert len(first) == 22
    assert level.value == NEWEST
    assert open_identity(tmp_path)[0] == first
    (tmp_path / "meta.json").write_text('{"format": 99, "cluster_id": "x"}')
    with pytest.raises(ValueError, match="format 99"):
        open_identity(tmp_path)


async def test_a_directory_of_the_first_release_is_finalized_once(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(
        '{"format": 2, "cluster_id": "x", "shards": 1, "kafka": false}'
    )
    cluster_id, level = open_identity(tmp_path)
    assert (cluster_id, level.value) == ("x", 1)
    await DirectoryUpgrades(tmp_path, cluster_id, level).finalize(NEWEST)
    assert level.value == NEWEST
    assert open_identity(tmp_path)[1].value == NEWEST
    # A release that knows less refuses it then
    assert json.loads((tmp_path / "meta.json").read_text())["format"] > 2


def test_shards_are_murmur_of_the_name_and_stable() -> None:
    assert shard_of("user-42", 64) == mmh3.hash("user-42", 0x9747B28C, signed=False) % 64
    assert shard_of("user-42", 64, 3) == (shard_of("user-42", 64) + 3) % 64


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "x" * 249, "..."])
def test_legal_names(name: str) -> None:
    assert name_fault(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * 250, "a\n", "ａ"])
def test_illegal_names(name: str) -> None:
    assert name_fault(name)
