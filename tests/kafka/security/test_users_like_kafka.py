"""Users at a real Kafka and at kproxy: Alter- and DescribeUserScramCredentials, right and wrong."""

from itertools import count
from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served, eventually
from tests.kafka.alike import same
from tests.kafka.recorded import Recorded, Target
from tests.wire import Wire

Told = list[tuple[str, int, str | None]]
_SHA_256, _SHA_512, _UNKNOWN, _NONE = 1, 2, 0, 77
_HASHED = {_SHA_256: b"h" * 32, _SHA_512: b"h" * 64}


def put(
    user: str, mechanism: int = _SHA_256, iterations: int = 4096, salt: bytes = b"some salt",
    hashed: bytes | None = None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "name": user, "mechanism": mechanism, "iterations": iterations, "salt": salt,
        "salted_password": _HASHED.get(mechanism, b"h" * 32) if hashed is None else hashed,
    }  # fmt: skip


def drop(user: str, mechanism: int = _SHA_256) -> dict[str, Any]:
    return {"name": user, "mechanism": mechanism}


class Users:
    """The users whose names begin so, at one of both."""

    def __init__(self, wire: Wire, prefix: str) -> None:
        self._wire, self._prefix = wire, prefix
        self._markers = count()

    def _named(self, changes: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        return [one | {"name": one["name"] and self._prefix + one["name"]} for one in changes]

    def _plain(self, text: str | None) -> str | None:
        return text and text.replace(self._prefix, "")

    def alter(self, *changes: dict[str, Any]) -> Told:
        """Alter users; return the result of each once it holds everywhere."""
        named = self._named(changes)
        told = self._wire.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {
            "deletions": [one for one in named if "salt" not in one],
            "upsertions": [one for one in named if "salt" in one],
        })  # fmt: skip
        return sorted(
            (self._plain(one.user) or "", int(one.error_code), self._plain(one.error_message))
            for one in told.results
        )

    def describe(self, *users: str) -> list[Any]:
        """Describe users as of now: a real Kafka's brokers hear of a change a little later."""
        marker = f"{self._prefix}marker{next(self._markers)}"
        values = {"deletions": (), "upsertions": [put(marker)]}
        self._wire.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, values)
        eventually(lambda: not self._ask([marker]).results[0].error_code)
        told = self._ask([user and self._prefix + user for user in users] or None)
        assert (int(told.error_code), told.error_message) == (0, "")
        return sorted(
            (self._plain(one.user), int(one.error_code), self._plain(one.error_message),
             sorted((info.mechanism, info.iterations) for info in one.credential_infos))
            for one in told.results
            if "marker" not in one.user and (users or one.user.startswith(self._prefix))
        )  # fmt: skip

    def _ask(self, users: list[str] | None) -> Any:
        named = None if users is None else [{"name": user} for user in users]
        values = {"users": named}
        return self._wire.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, values)


ODD = ("a,b=c", "ä", "User:x", "with space", "*", "x" * 300)
ASKED: dict[str, tuple[dict[str, Any], ...]] = {
    "nothing": (),
    "empty name": (put(""),),
    "empty name, deleted": (drop(""),),
    "empty name, unknown mechanism": (put("", _UNKNOWN), drop("", _NONE)),
    "unknown mechanism": (put("a", _UNKNOWN), put("b", _NONE)),
    "unknown mechanism, deleted": (drop("there", _UNKNOWN), drop("a", _NONE)),
    "unknown mechanism, too few iterations": (put("a", _UNKNOWN, 1),),
    "too few iterations": (put("a", iterations=4095), put("b", iterations=0),
                           put("c", iterations=-1), put("d", _SHA_512, 4095)),
    "too many iterations": (put("a", iterations=16_385), put("b", _SHA_512, 2**31 - 1)),
    "as many iterations as may be": (put("a", iterations=16_384), put("b", _SHA_512, 4096)),
    "twice": (put("a"), put("a")),
    "twice, the one wrong": (put("a"), put("a", iterations=1)),
    "twice, the one wrong before": (put("a", iterations=1), put("a")),
    "deleted and put": (drop("there"), put("there", iterations=8192)),
    "deleted, was not there, and put": (drop("a"), put("a")),
    "deleted, was not there, and put, of another mechanism": (drop("a"), put("a", _SHA_512)),
    "deleted twice": (drop("there"), drop("there")),
    "deleted twice, was not there": (drop("a"), drop("a")),
    "deleted, was not there": (drop("a"),),
    "deleted, of another mechanism": (drop("there", _SHA_512),),
    "some wrong, others done": (put("a"), put("b", iterations=1), drop("there"), drop("c")),
    "put again, with others": (put("there", iterations=5000),),
    "odd names": tuple(put(name) for name in ODD),
    "odd salts": (put("a", salt=b"\0"), put("b", salt=b"s" * 1000), put("c", hashed=b"h")),
}  # fmt: skip

BOTH: dict[str, tuple[tuple[dict[str, Any], ...], Told]] = {
    "put": ((put("a"), put("a", _SHA_512)), [("a", 0, None)]),
    "put, the one wrong": ((put("a"), put("a", _SHA_512, 1)), [("a", 93, "Too few iterations")]),
    "put, the one unknown": ((put("a"), put("a", _NONE)), [("a", 33, "Unknown SCRAM mechanism")]),
    "deleted and put": ((drop("there"), put("there", _SHA_512)), [("there", 0, None)]),
    "deleted, the one not there": ((drop("there"), drop("there", _SHA_512)), [
        ("there", 91, "Attempt to delete a user credential that does not exist"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_users_are_altered(recorded: Recorded, server: Served, what: str) -> None:
    def script(target: Target) -> list[Any]:
        with Wire(target.host, target.port) as wire:
            users = Users(wire, f"{recorded.name}.")
            return [
                users.alter(put("there", iterations=4097)), users.alter(*ASKED[what]),
                users.describe(),
            ]  # fmt: skip

    same(*recorded.both(script, server))


@pytest.mark.parametrize("what", BOTH)
def test_two_mechanisms_of_a_user_are_taken_at_once(
    recorded: Recorded, server: Served, what: str
) -> None:
    """Kafka's documentation puts both so, and Kafka refuses that. All or none of it is done."""
    asked, expected = BOTH[what]

    def script(target: Target) -> list[Any]:
        with Wire(target.host, target.port) as wire:
            users = Users(wire, f"{recorded.name}.")
            users.alter(put("there"))
            before = users.describe()
            return [users.alter(*asked), users.describe() != before]

    theirs, ours = recorded.both(script, server)
    message = "A user credential cannot be altered twice in the same request"
    assert theirs == [[[expected[0][0], 92, message]], False]
    assert ours == [[list(expected[0])], not expected[0][1]]


def test_users_are_described(recorded: Recorded, server: Served) -> None:
    def script(target: Target) -> list[Any]:
        with Wire(target.host, target.port) as wire:
            users = Users(wire, f"{recorded.name}.")
            users.alter(put("one"), put("both", _SHA_512, 5000))
            users.alter(put("both", iterations=6000))
            asked: list[tuple[str, ...]] = [
                (), ("one",), ("both",), ("one", "both"), ("none",), ("none", "one"),
                ("one", "one"), ("none", "none"), ("one", "one", "both", "one"), ("",), ("", "one"),
                ("ONE",),
            ]  # fmt: skip
            return [users.describe(*names) for names in asked]

    same(*recorded.both(script, server))
