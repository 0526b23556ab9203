"""Names and settings that `kproxy create` and `alter` are given, and refusals of what they ask."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import click

from kproxy.common.errors import Code
from kproxy.tools.output import Refusals, bar, print_json

_ADVICE = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: "`kproxy queues` lists what there is",
    Code.TOPIC_ALREADY_EXISTS: "--if-not-exists passes over it, `kproxy alter` changes it",
    Code.TOPIC_AUTHORIZATION_FAILED: "log in as a user who may, see --command-config",
    Code.GROUP_AUTHORIZATION_FAILED: "log in as a user who may, see --command-config",
    Code.CLUSTER_AUTHORIZATION_FAILED: "log in as a user who may, see --command-config",
    Code.INVALID_PARTITIONS: "give another --partitions",
    Code.THROTTLING_QUOTA_EXCEEDED: "this user's quota is used up: try again later",
    Code.MESSAGE_TOO_LARGE: "`kproxy alter QUEUE --set max.message.bytes=BYTES` allows larger ones",
    Code.REQUEST_TIMED_OUT: "try again; `kproxy health` tells whether it serves",
    Code.KAFKA_STORAGE_ERROR: "its disk is full or damaged, see its log",
}
_UNSAID = "the server gives no reason"


class Outcome(NamedTuple):
    """The answer about one name."""

    name: str
    code: int = 0
    message: str | None = None

    @property
    def reason(self) -> str:
        """One line: the error, and what to do about it."""
        return reason(self.code, self.message)


def reason(code: int, message: str | None) -> str:
    """Return one line about an error code: its name, the server's words, and what to do."""
    known = {member.value: member for member in Code}
    error = known.get(code)
    said = (message or "").strip().rstrip(".").replace("\n", " ")
    parts = [error.name if error is not None else f"error {code}"]
    if said and said.upper() != parts[0]:
        parts.append(said)
    if error in _ADVICE:
        parts.append(_ADVICE[error])
    elif not said:
        parts.append(_UNSAID)
    return ": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:])


def all_names(given: Iterable[str]) -> list[str]:
    """Return the names, each once; `-` stands for the lines of standard input."""
    found: dict[str, None] = {}
    for name in given:
        if name != "-":
            found[name] = None
            continue
        lines = (line.decode(errors="replace").strip() for line in sys.stdin.buffer)
        found |= dict.fromkeys(line for line in lines if line)
    if not found:
        raise click.UsageError("standard input has no names")
    return list(found)


def pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Return what KEY=VALUE options say. Raises UsageError."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError(f"{option} {text}: write it as KEY=VALUE")
        found[key] = value
    return found


def shown(outcomes: Iterable[Outcome], names: list[str], label: str) -> Iterator[Outcome]:
    """Yield outcomes, and show how many there are of those that are to come."""
    with bar(label, len(names)) as told:
        for outcome in outcomes:
            told(advance=1)
            yield outcome


def report(
    outcomes: Iterable[Outcome], done: str, as_json: bool, about: Callable[[str], Mapping[str, Any]]
) -> None:
    """Print how many were done and a line for each refusal. Raises SystemExit where any was."""
    count, refusals = 0, Refusals()
    for outcome in outcomes:
        if as_json:
            line = {**about(outcome.name), done: not outcome.code, "error_code": outcome.code}
            print_json([line | {"error": outcome.reason if outcome.code else None}])
        if outcome.code:
            refusals.add(f"{outcome.name}: {outcome.reason}")
        else:
            count += 1
    if not as_json:
        click.echo(f"{done} {count}")
    refusals.end()
