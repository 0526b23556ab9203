"""The inferences of clients from ApiVersions: the same of kproxy as of a real Kafka."""

import logging
import re
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kio.schema.index import api_key_map

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served, eventually
from tests.kafka.recorded import NEWEST, Recorded, Target
from tests.wire import Wire

KAFKA = NEWEST
NOT_SERVED = {
    "ADD_RAFT_VOTER", "REMOVE_RAFT_VOTER",
    "INITIALIZE_SHARE_GROUP_STATE", "READ_SHARE_GROUP_STATE", "WRITE_SHARE_GROUP_STATE",
    "DELETE_SHARE_GROUP_STATE", "READ_SHARE_GROUP_STATE_SUMMARY",  # between brokers
    "94",  # UNREGISTER_CONTROLLER
}  # fmt: skip
"""APIs of Kafka that are not there."""


def _name(key: int) -> str:
    known = {int(one): one.name for one in ApiKey}
    return api_key_map.get(key, known.get(key, str(key))).upper()


def ranges(target: Target) -> dict[str, tuple[int, int]]:
    """Return the lowest and highest version by API."""
    with Wire(target.host, target.port) as wire:
        keys = wire.call(ApiKey.API_VERSIONS, 4, {
            "client_software_name": "test", "client_software_version": "1",
        }).api_keys  # fmt: skip
    return {_name(one.api_key): (one.min_version, one.max_version) for one in keys}


def test_versions(recorded: Recorded, server: Served) -> None:
    theirs, ours = recorded.both(ranges, server)
    assert ours.keys() <= theirs.keys()
    assert {name: found for name, found in ours.items() if found != theirs[name]} == {}
    assert theirs.keys() - ours.keys() == NOT_SERVED


@pytest.mark.parametrize("version", range(6))
def test_api_versions_announces_the_features_that_kafka_announces(
    recorded: Recorded, server: Served, version: int
) -> None:
    theirs, ours = recorded.both(lambda target: announced(target, version), server)
    assert ours == {name: found for name, found in theirs.items() if name in OUR_FEATURES}


OUR_FEATURES = ("transaction.version", "share.version", "streams.version")


def announced(target: Target, version: int) -> dict[str, list[tuple[int, int]]]:
    """Return by feature its supported range, where announced, then its finalized one."""
    named = {"client_software_name": "test", "client_software_version": "1"}
    with Wire(target.host, target.port) as wire:
        answer = wire.call(ApiKey.API_VERSIONS, version, named if version >= 3 else {})
    found: dict[str, list[tuple[int, int]]] = {}
    if version >= 3:
        for one in answer.supported_features:
            found.setdefault(one.name, []).append((one.min_version, one.max_version))
        for one in answer.finalized_features:
            found.setdefault(one.name, []).append((one.min_version_level, one.max_version_level))
    return {name: ranges for name, ranges in found.items() if name != "kproxy.level"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python(recorded: Recorded, server: Served) -> None:
    def script(target: Target) -> Any:
        producer = KafkaProducer(bootstrap_servers=target.address)
        try:
            return producer.config["api_version"]
        finally:
            producer.close()

    theirs, ours = recorded.both(script, server, asked=f"kafka-python {kafka.__version__}")
    assert ours == theirs
    assert ours[:2] == [4, 3]


class Lines(logging.Handler):
    """The lines that a librdkafka client logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def features(target: Target) -> set[str]:
    """Return the features that librdkafka finds enabled."""
    logger, handler = logging.Logger("features", logging.DEBUG), Lines()
    logger.addHandler(handler)
    settings = {"bootstrap.servers": target.address, "debug": "feature,broker"}
    producer = Producer(settings, logger=logger)

    def found() -> str | None:
        producer.poll(0.05)
        for line in handler.lines:
            seen = re.search(r"Updated enabled protocol features .* to (\S+)$", line)
            if seen:
                return seen[1]
        return None

    return set(eventually(found, 20).split(","))


def test_librdkafka(recorded: Recorded, server: Served) -> None:
    asked = f"librdkafka {confluent_kafka.libversion()[0]}"
    theirs, ours = recorded.both(features, server, asked)
    assert ours == theirs
