"""Each setting of a topic with each of many values: taken, refused and shown as by Kafka 4.4.0.

Different on purpose: NaN is no ratio; a message is no longer than the log below takes; records
are kept for two weeks by default, not one; `min.insync.replicas` is not shown as a broker's dynamic
setting.
"""

from contextlib import suppress
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.alike import alike, made
from tests.kafka.recorded import NEWEST
from tests.wire import Wire, keyed

KAFKA = NEWEST
TOPIC = 2
DIFFERENT = {"retention.ms", "min.insync.replicas"}
OURS = ("kproxy.",)
REFUSED = {("min.cleanable.dirty.ratio", "NaN"), ("max.message.bytes", "2147483647")}
VALUES = (
    "", " ", "0", "1", " 7 ", "+3", "-1", "-2", "-3", "17", "18", "0.5", "1.5", "1e-1", "NaN",
    "0x1p-1", "1_0", "99999", "1048576", "2147483647", "2147483648", "9223372036854775807",
    "9223372036854775808", "-131072", "-131073", "true", "FALSE", "yes", "delete", "compact",
    "delete,compact", " compact , delete ", "delete,delete", "Delete", "delete,", "producer",
    "uncompressed", "gzip", "zstd", "lz4", "snappy", "none", "CreateTime", "LogAppendTime", "*",
    "0:1", "0:1,1:2", "0:1:2", "a:b", "0:",
)  # fmt: skip


def settings(wire: Wire, queue: str) -> list[Any]:
    values = {
        "resources": [
            {"resource_type": TOPIC, "resource_name": queue, "configuration_keys": None}
        ],
        "include_synonyms": True, "include_documentation": True,
    }  # fmt: skip
    found = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, values).results[0].configs
    return [config for config in found if not config.name.startswith(OURS)]


def _plain(value: str) -> str:
    """Return a value without its spelling: Kafka answers a creation with the text given."""
    plain = value.replace(" ", "").lstrip("+").lower()
    with suppress(ValueError):
        plain = str(float.fromhex(plain) if "0x" in plain else float(plain))
    return plain


def tried(wire: Wire, prefix: str, names: list[str]) -> list[Any]:
    """Return for each setting and value the error code, or the value as it is shown."""
    found: list[Any] = []
    for name in names:
        topics = [
            {
                "name": f"{prefix}{number}", "num_partitions": 1, "replication_factor": 1,
                "assignments": (), "configs": [{"name": name, "value": value}],
            }
            for number, value in enumerate(VALUES)
        ]  # fmt: skip
        values = {"topics": topics, "timeout": 5000, "validate_only": True}
        for value, topic in zip(
            VALUES, wire.call(ApiKey.CREATE_TOPICS, 7, values).topics, strict=True
        ):
            shown = [
                (_plain(config.value), config.config_source, config.read_only)
                for config in topic.configs or ()
                if config.name == name
            ]
            if (name, value) not in REFUSED:
                found.append((name, value, topic.error_code or shown))
    return found


@alike
def test_each_value(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    names = sorted(config.name for config in settings(wire, queue))
    assert len(names) == 37
    return tried(wire, f"{queue}-", [*names, "no.such"])


@alike
def test_each_setting_is_described(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, segment_bytes="2000000", flush_ms="77")
    return sorted(
        (
            c.name, c.value, c.config_type, c.config_source, c.read_only, c.is_sensitive,
            [(s.name, s.value, s.source) for s in c.synonyms], bool(c.documentation),
        )
        for c in settings(wire, queue) if c.name not in DIFFERENT
    )  # fmt: skip


@alike
def test_the_largest_record_that_unpacks(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, max_decompressed_message_bytes="100")
    found: list[Any] = []
    for codec in range(5):
        for records in (
            [(None, b"v" * 93)], [(None, b"v" * 94)], [(b"k" * 50, b"v" * 43)],
            [(b"k" * 50, b"v" * 44)], [(None, b"v" * 90)] * 70, [(None, b"v" * 93)] * 70,
            [(None, b"v"), (None, b"v" * 500), (None, b"v")],
        ):  # fmt: skip
            answer = wire.produce(queue, keyed(*records, codec=codec))
            found.append((codec, int(answer.error_code), answer.record_errors))
    return found
