"""Requests that decode but make no sense: random values of every type in every API and version."""

import random
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest

from kproxy.dispatch import RANGES
from kproxy.groups.embedded_protocol import encode_subscription
from kproxy.protocol.codec import encode_request, request_schema
from tests.harness import Served
from tests.wire import Wire, batch

ROUNDS = 25
INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
NAMES = ["fuzz-a", "fuzz-b", "", ".", "no/name", "x" * 300, "ü", "g", "y" * 40_000]
TEXTS = [*NAMES, "retention.ms", "max.message.bytes", "5", "-1", "9" * 400, "z" * 70_000]


def an_int(rng: random.Random, bits: int) -> int:
    edge = 1 << (bits - 1)
    return rng.choice((0, 0, 0, 1, 1, -1, -2, 2, 7, edge - 1, -edge, rng.randrange(-edge, edge)))


def a_batch(rng: random.Random) -> bytes | None:
    data = bytearray(
        batch(
            *[b"v"] * rng.randrange(1, 4),
            producer_id=rng.choice((-1, 0, 1, 2**62)),
            epoch=an_int(rng, 16),
            sequence=an_int(rng, 32),
            times=(an_int(rng, 64),) * 4,
            attributes=an_int(rng, 16),
            count=rng.choice((None, an_int(rng, 32))),
            last_delta=rng.choice((None, an_int(rng, 32))),
        )
    )
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return rng.choice((bytes(data), bytes(data), bytes(data), None, b""))


def a_value(rng: random.Random, kind: str, nullable: bool, flexible: bool, ids: list[UUID]) -> Any:
    if nullable and rng.random() < 0.2:
        return None
    if kind in INTS:
        return an_int(rng, INTS[kind])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(TEXTS if flexible else [t for t in TEXTS if len(t.encode()) < 32768])
    if kind == "uuid":
        return rng.choice([*ids, UUID(int=0), UUID(int=5)])
    if kind in ("timedelta_i32", "timedelta_i64"):
        return rng.choice((0, 1, 20, -5))
    if kind == "records":
        return a_batch(rng)
    if kind == "bytes":
        return rng.choice((a_batch(rng) or b"", encode_subscription(("fuzz-a", "fuzz-b")), b""))
    raise AssertionError(kind)


def parts_of(annotation: Any) -> tuple[Any, bool]:
    """(the annotation without None, whether None was in it)."""
    if get_origin(annotation) is tuple or not get_args(annotation):
        return annotation, False
    kept = [part for part in get_args(annotation) if part is not type(None)]
    return kept[0], len(kept) < len(get_args(annotation))


def values_of(rng: random.Random, schema: Any, ids: list[UUID]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields(schema):
        if field.default is not MISSING and rng.random() < 0.3:
            continue
        kept, nullable = parts_of(field.type)
        kind = field.metadata.get("kafka_type", "")
        if get_origin(kept) is tuple:
            inner, _ = parts_of(get_args(kept)[0])
            count = rng.choice((0, 1, 1, 2, 5))
            if nullable and rng.random() < 0.2:
                values[field.name] = None
            elif is_dataclass(inner):
                values[field.name] = [values_of(rng, inner, ids) for _ in range(count)]
            else:
                values[field.name] = [
                    a_value(rng, kind, False, schema.__flexible__, ids) for _ in range(count)
                ]
        elif is_dataclass(kept):
            values[field.name] = values_of(rng, kept, ids)
        else:
            values[field.name] = a_value(rng, kind, nullable, schema.__flexible__, ids)
    return values


WAITING = (11, 14)  # JoinGroup and SyncGroup: for other members, as long as these may take


@pytest.mark.parametrize("key", [key for key, _, _ in RANGES])
def test_nonsense_is_answered_or_ends_its_own_connection(server: Served, key: int) -> None:
    rng = random.Random(key)
    low, high = next((low, high) for k, low, high in RANGES if k == key)
    with Wire(server.host, server.port) as wire:
        ids = [t.topic_id for t in wire.metadata("fuzz-a", "fuzz-b").topics]
    answered, before = 0, len(server.faults())
    for version in range(3 if key == 0 else low, high + 1):
        for _ in range(ROUNDS):
            values = values_of(rng, request_schema(key, version), ids)
            if "max_wait" in values:
                values["max_wait"] = rng.choice((0, 5))
            request = encode_request(key, version, 1, values)
            seconds, quiet = (0.2, TimeoutError) if key in WAITING else (10, ConnectionError)
            with (
                Wire(server.host, server.port, seconds=seconds) as wire,
                suppress(ConnectionError, quiet),
            ):
                wire.socket.sendall(request)
                if values.get("acks") == 0:
                    wire.call(18, 0, {})
                else:
                    wire.receive(key, version)
                answered += 1
    assert answered > 0
    faults = {fault["exception"][-400:] for fault in server.faults()[before:]}
    assert not faults
    assert server.process.poll() is None
    with Wire(server.host, server.port) as wire:
        assert wire.produce("fuzz-after", batch(b"v")).error_code == 0


def test_what_nonsense_left_behind_can_be_recovered(server: Served) -> None:
    """Nothing that was appended stops the fold, now or at the next start."""
    from tests.harness import served

    server.kill()
    with served(server.data_dir) as again, Wire(again.host, again.port) as wire:
        assert wire.produce("fuzz-after", batch(b"v")).error_code == 0
