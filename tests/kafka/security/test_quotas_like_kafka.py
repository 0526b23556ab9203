"""Quotas at a real Kafka and at kproxy: the APIs, throttle times, empty answers, refusals."""

import struct
import time
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.security.quotas import CONNECTED, CONSUMED, MUTATED, PRODUCED, WORKED
from tests.harness import Served, eventually
from tests.kafka.alike import made, same
from tests.kafka.recorded import Recorded, Target
from tests.wire import Wire, batch, fetch_values, produce_values

_NAME = b"kproxy"  # the client id of `encode_request`
_ID_AT = 12


class As(Wire):
    """A client with another client id."""

    def __init__(self, target: Target, client_id: str) -> None:
        super().__init__(target.host, target.port, 60)
        self._client_id = client_id.encode()

    def frame(self, key: int, version: int, values: dict[str, Any]) -> bytes:
        frame = super().frame(key, version, values)
        head, rest = frame[4:_ID_AT], frame[_ID_AT + 2 + len(_NAME) :]
        data = head + struct.pack(">h", len(self._client_id)) + self._client_id + rest
        return struct.pack(">i", len(data)) + data


def change(entity: dict[str, str | None], **ops: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in ops.items()
        ],
    }


def alter(wire: Wire, *entries: dict[str, Any], validate_only: bool = False) -> Any:
    values = {"entries": entries, "validate_only": validate_only}
    told = wire.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, values)
    return sorted(
        (sorted((e.entity_type, e.entity_name or "") for e in one.entity), int(one.error_code),
         one.error_message)
        for one in told.entries
    )  # fmt: skip


def describe(wire: Wire, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    parts = [{"entity_type": k, "match_type": m, "match": n} for k, m, n in components]
    told = wire.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": parts, "strict": strict})
    entries = told.entries if told.entries is None else sorted(
        (sorted((e.entity_type, e.entity_name or "") for e in one.entity),
         sorted((v.key, v.value) for v in one.values))
        for one in told.entries
    )  # fmt: skip
    return int(told.error_code), told.error_message, entries


UNSOUND = (
    change({"user": "a"}, no_such=1.0),
    change({"user": "a"}, **{CONNECTED: 1.0}),
    change({"ip": "10.0.0.1"}, **{PRODUCED: 1.0}),
    change({"user": "a"}, **{PRODUCED: 0.0}),
    change({"user": "a"}, **{PRODUCED: 1.5}),
    change({"user": "a"}, **{PRODUCED: 1e19}),
    change({"ip": None}, **{CONNECTED: 3e9}),
    change({"user": ""}, **{PRODUCED: 1.0}),
    change({"planet": "x"}, **{PRODUCED: 1.0}),
    change({}, **{PRODUCED: 1.0}),
    change({"ip": "no address!"}, **{CONNECTED: 1.0}),
    change({"ip": "10.0.0.1", "user": "a"}, **{PRODUCED: 1.0}),
    change({"client-id": "a"}, **{WORKED: -1.0}),
    change({"client-id": "a"}, **{MUTATED: 0.0}),
    change({"user": "nobody"}, **{PRODUCED: None}),
    change({"user": "nobody"}, no_such=None),
)


def test_alterations_are_answered(recorded: Recorded, server: Served) -> None:
    prefix = recorded.name

    def script(target: Target) -> list[Any]:
        name, other = f"{prefix}-u", f"{prefix}-c"
        with Wire(target.host, target.port) as wire:
            steps = [alter(wire, one) for one in UNSOUND]
            twice = change({"user": name}, **{PRODUCED: 5.0})
            twice["ops"] *= 2
            steps.append(alter(wire, twice))
            steps.append(alter(wire, change({"user": name}, **{PRODUCED: 5.0}),
                               change({"user": name}, **{PRODUCED: 6.0}),
                               validate_only=True))  # fmt: skip
            steps.append(alter(wire, change({"user": name}, **{PRODUCED: 1024.0, WORKED: 1.5}),
                               change({"user": name, "client-id": other}, **{CONSUMED: 7.0}),
                               change({"user": name, "client-id": None}, **{MUTATED: 2.5}),
                               change({"client-id": other}, **{WORKED: 200.0, PRODUCED: -1.0}),
                               change({"client-id": other + "2"}, **{WORKED: 200.0}),
                               ))  # fmt: skip
            eventually(lambda: len(describe(wire, ("user", 0, name))[2]) == 3)
            filters: list[tuple[tuple[str, int, str | None], ...]] = [
                (("user", 0, name),),
                (("user", 0, name), ("client-id", 0, other)),
                (("user", 0, name), ("client-id", 1, None)),
                (("user", 0, name), ("client-id", 2, None)),
                (("client-id", 0, other + "2"),),
                (("user", 0, "nobody"),),
                (("user", 0, None),), (("user", 1, "x"),), (("user", 2, "x"),), (("user", 9, "x"),),
                (("", 0, "x"),), (("planet", 0, "x"),),
                (("user", 0, "x"), ("user", 2, None)),
                (("user", 0, "x"), ("ip", 2, None)),
            ]  # fmt: skip
            for components in filters:
                for strict in (False, True):
                    steps.append(describe(wire, *components, strict=strict))
            steps.append(alter(wire, change({"user": name}, **{PRODUCED: None, WORKED: None}),
                               change({"user": name, "client-id": other}, **{CONSUMED: None}),
                               change({"user": name, "client-id": None}, **{MUTATED: None}),
                               change({"client-id": other + "2"}, **{WORKED: None})))  # fmt: skip
            eventually(lambda: not describe(wire, ("user", 0, name))[2])
            return steps

    same(*recorded.both(script, server))


def limited(target: Target, name: str, **rates: float) -> None:
    """Set a client id's rates; a real Kafka takes a moment until they hold."""
    with Wire(target.host, target.port) as wire:
        assert alter(wire, change({"client-id": name}, **rates))[0][1] == 0
        eventually(lambda: describe(wire, ("client-id", 0, name))[2])


def ms(answer: Any) -> int:
    return round(answer.throttle_time.total_seconds() * 1000)


def test_a_produce_over_the_rate(recorded: Recorded, server: Served) -> None:
    """kproxy takes the second one later: another connection does not help."""
    name = recorded.name

    def script(target: Target) -> list[Any]:
        with Wire(target.host, target.port) as wire:
            made(wire, name)
        limited(target, name, **{PRODUCED: 10_000.0})
        values = produce_values(name, batch(bytes(120_000)))
        begun = time.monotonic()
        with As(target, name) as wire:
            first = wire.call(ApiKey.PRODUCE, 9, values)
            assert first.responses[0].partition_responses[0].error_code == 0
        with As(target, name) as wire:
            second = wire.call(ApiKey.PRODUCE, 9, values)
        passed = (time.monotonic() - begun) * 1000
        return [1000 - passed < ms(first) < 3000, 13_000 - passed < ms(second) < 15_000]

    same(*recorded.both(script, server))


def test_a_fetch_over_the_rate(recorded: Recorded, server: Served) -> None:
    name = recorded.name

    def script(target: Target) -> list[Any]:
        with Wire(target.host, target.port) as wire:
            made(wire, name)
            for _ in range(10):
                assert wire.produce(name, batch(bytes(10_000))).error_code == 0
        limited(target, name, **{CONSUMED: 5000.0})
        with As(target, name) as wire:
            values = fetch_values({(name, 0): 0}, epoch=0, partition_max_bytes=35_000)
            first = wire.call(ApiKey.FETCH, 12, values)
        with As(target, name) as wire:
            values = fetch_values({(name, 0): 3}, session_id=first.session_id, epoch=1, wait_ms=500)
            second = wire.call(ApiKey.FETCH, 12, values)
        with As(target, name) as wire:
            values = fetch_values({(name, 0): 3}, session_id=first.session_id, epoch=1)
            stale = wire.call(ApiKey.FETCH, 12, values)
        with As(target, name) as wire:
            values = fetch_values({(name, 0): 3}, epoch=0, wait_ms=500)
            anew = wire.call(ApiKey.FETCH, 12, values)
        size = len(first.responses[0].partitions[0].records)  # Kafka counts a part of a batch too
        return [size >= 30_000, ms(first), len(second.responses), int(second.error_code),
                second.session_id == first.session_id, ms(second) > 1000,
                int(stale.error_code), len(anew.responses), anew.session_id,
                ms(anew) > 1000]  # fmt: skip

    same(*recorded.both(script, server))


def test_changes_over_the_rate(recorded: Recorded, server: Served) -> None:
    name = recorded.name

    def creation(*topics: str) -> dict[str, Any]:
        return {
            "topics": [
                {"name": topic, "num_partitions": 20, "replication_factor": 1, "assignments": (),
                 "configs": ()}
                for topic in topics
            ],
            "timeout": 5000, "validate_only": False,
        }  # fmt: skip

    def script(target: Target) -> list[Any]:
        limited(target, name, **{MUTATED: 1.0})
        steps: list[Any] = []
        for version, topics in ((7, ("a", "b")), (7, ("c",)), (5, ("d",))):
            with As(target, name) as wire:
                told = wire.call(
                    ApiKey.CREATE_TOPICS, version, creation(*(f"{name}-{t}" for t in topics))
                )
                steps.append(
                    [(one.name, int(one.error_code), one.error_message) for one in told.topics]
                )
                steps.append(round(ms(told) / 10_000))
        return steps

    theirs, ours = recorded.both(script, server)
    *theirs, theirs_s = theirs
    *ours, ours_s = ours
    same(theirs, ours)
    assert ours_s < theirs_s, "an old version waits before it is served, whatever its connection"
