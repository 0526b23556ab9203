"""One situation asked at every version of an API, and the whole answers in one form.

A field that says the same at all versions that have it makes one line, so that a recording shows at
which version an answer changes. Which versions have it is a matter of schemas.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import request_schema
from kproxy.protocol.newer import REQUESTS
from kproxy.server.api_table import TABLE
from tests.kafka.canonical import canonical
from tests.wire import Wire

Values = dict[str, Any]
_LATER = {14, 15, 16, 51}  # a coordinator that loads, is elsewhere, or still ends a transaction
_OWN = {
    "cluster_id", "host", "port", "node_id", "broker_id", "controller_id", "leader_id",
    "leader_epoch", "finalized_features_epoch", "epoch", "partition_leader_epoch", "log_dir",
    "documentation", "total_bytes", "usable_bytes", "partition_size", "last_timestamp", "leader",
    "session_id", "producer_id", "client_host", "base_offset", "transaction_start_time",
    "member_epoch", "group_epoch", "assignment_epoch",
}  # fmt: skip
"""Fields whose value is a server's own: compared is whether there is one."""
_UNREADABLE = {
    ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN,
}  # fmt: skip
"""APIs whose times may be -1, which kio does not decode: their bytes are compared."""
_LENGTHS = {"replica_nodes", "isr_nodes", "replicas", "current_voters", "nodes"}
_UNSEEN = {
    "error_message", "message", "batch_index_error_message", "acknowledge_error_message",
}  # fmt: skip
"""Fields whose text is a server's own, or none."""


class Asked:
    """The requests of a script by a connection, and their answers."""

    def __init__(self, wire: Wire, name: str, *, newer: bool = False) -> None:
        self.wire, self.name, self.newer = wire, name, newer
        self.said: list[Any] = []
        self.seen: dict[ApiKey, set[int]] = {}

    def each(
        self, what: str, key: ApiKey, values: Values | Callable[[int], Values],
        pick: Callable[[Any], Any] = lambda answer: answer, wire: Wire | None = None,
    ) -> None:  # fmt: skip
        """Ask at every version; `pick` takes of an answer what is this script's."""
        found: dict[str, dict[int, Any]] = {}
        for version in versions(key, newer=self.newer):
            given = values(version) if callable(values) else values
            answer = self.call(key, version, given, wire)
            told = answer if answer == "closed" else self.plain(pick(answer), version)
            for path, one in _leaves(told):
                found.setdefault(path, {})[version] = one
            self.seen.setdefault(key, set()).add(version)
        self.said.append(
            {f"{key.name.lower()}: {what}": {path: _ranges(by) for path, by in found.items()}}
        )

    def call(self, key: ApiKey, version: int, values: Values, wire: Wire | None = None) -> Any:
        """Ask, again while a coordinator is not there yet. "closed": so was the connection."""
        end = time.monotonic() + 20
        while True:
            try:
                answer = self._answer(wire or self.wire, key, version, values)
            except ConnectionError:
                self.wire = Wire(*(wire or self.wire).socket.getpeername()[:2])
                return "closed"
            if not codes(answer) & _LATER or time.monotonic() > end:
                return answer
            time.sleep(0.02)

    def _answer(self, wire: Wire, key: ApiKey, version: int, values: Values) -> Any:
        if key not in _UNREADABLE:
            return wire.call(key, version, values)
        wire.send(key, version, values)
        return wire.receive_frame()[4:].hex()

    def plain(self, value: Any, version: int) -> Any:
        """Return an answer without what is a server's own."""
        text = json.dumps(_plain(value), ensure_ascii=False)
        text = text.replace(self.name, "name").replace(f"-v{version}", "")
        return json.loads(text)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Give each plain value, or empty list, in an answer, with the path of fields to it."""
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _leaves(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, one in enumerate(value):
            yield from _leaves(one, f"{path}[{index}]" if len(value) > 1 else path)
    else:
        yield path, value


def _ranges(by: dict[int, Any]) -> Any:
    """Return what is said at all versions, or at which ranges of them what."""
    lines: list[tuple[int, int, Any]] = []
    for version, one in by.items():
        if lines and lines[-1][2] == one:
            lines[-1] = (lines[-1][0], version, one)
        else:
            lines.append((version, version, one))
    if len(lines) == 1:
        return lines[0][2]
    return {f"v{low}" if low == high else f"v{low}-{high}": one for low, high, one in lines}


def versions(key: ApiKey, *, newer: bool = False) -> list[int]:
    """Return the versions of an API that are advertised, but for what no client can send.

    `newer`: those of Kafka's newest release, in the place of those of the releases before.
    """
    api = TABLE[key]
    found = [v for v in range(api.low, api.high + 1) if request_schema(key, v) is not None]
    return [v for v in found if ((key, v) in REQUESTS) == newer]


def codes(value: Any) -> set[int]:
    """Return all error codes in an answer."""
    return {int(code) for name, code in _walk(value) if name.endswith("error_code")}


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        for field in fields(value):
            one = getattr(value, field.name)
            yield field.name, one
            yield from _walk(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _walk(one)


def _plain(value: Any, name: str = "") -> Any:
    if name in _OWN:
        return _has(value)
    if name in _LENGTHS and isinstance(value, tuple | list):
        return f"{len(value)} of them"
    if is_dataclass(value):
        kept = [one.name for one in fields(value) if one.name not in _UNSEEN]
        return {one: _plain(getattr(value, one), one) for one in kept}
    if isinstance(value, tuple | list):
        listed = [_plain(one) for one in value]
        return sorted(listed, key=lambda one: json.dumps(one, sort_keys=True))
    if name == "member_id" and value and len(value) > 20:
        return "given"
    return canonical(value)


def _has(value: Any) -> Any:
    if isinstance(value, str):
        return "text" if value else ""
    if isinstance(value, int):
        return value if value < 0 else "a number"
    if isinstance(value, datetime):
        return "a time"
    return canonical(value) if not isinstance(value, tuple | list) else len(value)
