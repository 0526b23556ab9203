"""The options of the data source, in the names of Spark's Kafka source where it has such."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kproxy.common.errors import CannotStart
from kproxy.tools.client import Address, Client
from kproxy.tools.client_settings import ClientSettings, client_settings, read_client_settings

_SERVERS, _CLIENT = "kafka.bootstrap.servers", "kafka."
_OFFSETS, _TIMESTAMP = "Offsets", "Timestamp"
_WHICH = ("prefix", "subscribe", "subscribepattern", "entrance")
_KNOWN = frozenset(
    (*_WHICH, "partitions", "failondataloss", "command-config", "startingoffsets", "endingoffsets",
     "startingtimestamp", "endingtimestamp")
)  # fmt: skip
EARLIEST, LATEST = -2, -1
"""The offsets, and the timestamps of ListOffsets, that mean the ends of a queue."""


class SourceError(Exception):
    """A read that cannot be; the message is one line for a person."""


class Unreachable(SourceError):
    """No server answers, for now."""


class Bound(NamedTuple):
    """The place where reading begins or ends: in all queues, or in some of them."""

    offset: int | None = None
    time_ms: int | None = None
    by_queue: Mapping[str, Mapping[str, int]] = {}


class Options(NamedTuple):
    """The options, read and checked."""

    servers: tuple[Address, ...]
    settings: ClientSettings
    prefix: str | None
    names: tuple[str, ...]
    pattern: str | None
    entrance: bool
    start: Bound
    end: Bound
    partitions: int
    committed: bool
    fails: bool
    """Whether records that are gone end the read."""

    def client(self) -> Client:
        """Return a client of the first server that answers. Raises Unreachable."""
        reason = ""
        for address in self.servers:
            client = Client(address, self.settings)
            try:
                client.nodes()
            except CannotStart as error:
                reason = str(error)
                client.__exit__()
            else:
                return client
        raise Unreachable(reason)


def read_options(given: Mapping[str, str], *, streams: bool = False) -> Options:
    """Read options, whose names have any case. Raises SourceError."""
    said = {name.lower(): value for name, value in given.items() if name.lower() != "path"}
    known = {name: value for name, value in said.items() if not name.startswith(_CLIENT)}
    if unknown := sorted(known.keys() - _KNOWN):
        raise SourceError(f"there is no option {unknown[0]}: {', '.join(sorted(_KNOWN))}")
    which = [name for name in _WHICH if known.get(name) is not None]
    if len(which) != 1:
        raise SourceError("give one of prefix, subscribe, subscribePattern, entrance")
    if streams and which[0] not in ("subscribe", "entrance"):
        raise SourceError(
            f"a stream does not read by {which[0]}: its offsets would be those of every queue."
            " Name an entrance through which the queues are written, or a few queues"
        )
    names = tuple(filter(None, map(str.strip, known.get(which[0], "").split(","))))
    pattern = known.get("subscribepattern")
    _check_pattern(pattern)
    isolation = said.get("kafka.isolation.level", "read_committed")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise SourceError("kafka.isolation.level is read_committed or read_uncommitted")
    return Options(
        _servers(said),
        _settings(said),
        known.get("prefix"),
        names if which[0] in ("subscribe", "entrance") else (),
        pattern,
        which[0] == "entrance",
        _bound(known, "starting", LATEST if streams else EARLIEST),
        _bound(known, "ending", LATEST),
        _number(known, "partitions", 8, 1, 100_000),
        isolation == "read_committed",
        _flag(known, "failondataloss"),
    )


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise SourceError(f"subscribePattern: {error}") from None


def _servers(said: Mapping[str, str]) -> tuple[Address, ...]:
    found = []
    for text in said.get(_SERVERS, "").split(","):
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdigit():
            raise SourceError(f"give {_SERVERS}=HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)


def _settings(said: Mapping[str, str]) -> ClientSettings:
    """Return the login: by a file that the driver reads, or by options."""
    try:
        if (path := said.get("command-config")) is not None:
            return read_client_settings(Path(path))
        values = {name.removeprefix(_CLIENT): value for name, value in said.items()}
        return client_settings("the options", values)
    except CannotStart as error:
        raise SourceError(str(error)) from None


def _bound(known: Mapping[str, str], which: str, default: int) -> Bound:
    """Return a place given as earliest, latest, a number, JSON as Spark has it, or by time."""
    text = known.get(f"{which}offsets")
    if f"{which}timestamp" in known:
        if text is not None:
            raise SourceError(f"give {which}Offsets or {which}Timestamp, not both")
        return Bound(time_ms=_number(known, f"{which}timestamp", 0, 0, 1 << 60))
    if text is None:
        return Bound(default)
    if text in ("earliest", "latest"):
        return Bound(EARLIEST if text == "earliest" else LATEST)
    if text.isdigit():
        return Bound(int(text))
    try:
        by_queue = json.loads(text)
        parts = [part for parts in by_queue.values() for part in parts.items()]
        if all(name.isdigit() and isinstance(offset, int) for name, offset in parts):
            return Bound(default, by_queue=by_queue)
    except (ValueError, AttributeError):
        pass
    raise SourceError(
        f'{which}Offsets is earliest, latest, a number for all queues, or JSON: {{"a": {{"0": 5}}}}'
    )


def _number(known: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = known.get(name, str(default))
    if not text.isdigit() or not least <= int(text) <= most:
        raise SourceError(f"{name} is a number from {least} to {most}: not {text!r}")
    return int(text)


def _flag(known: Mapping[str, str], name: str) -> bool:
    text = known.get(name, "true").lower()
    if text not in ("true", "false"):
        raise SourceError(f"{name} is true or false: not {text!r}")
    return text == "true"
