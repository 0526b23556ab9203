"""The traits of a kind of envelope that the code around the fold needs, without decoding it.

`of_kind` puts a class and its traits into `COMMANDS` and `TRAITS`. Importing `virtual.commands`
fills both.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from kproxy.virtual.commands import forms
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows.kinds import RowKind

TURN = 1000
"""Most units of weight applied in one turn of the loop; a heavier envelope is applied alone."""
_ITEM_BYTES = 60  # bytes of a command that lists offsets or members: about one in a unit


class DiskUse(IntEnum):
    """The rule by which the log accepts a kind although the disk is filling up."""

    ALWAYS = 0  # it frees disk, or is small and a deletion waits for it
    MODEST = 1  # while half of `disk_free_bytes_min` is free
    ORDINARY = 2  # while all of it is


def one(envelope: Envelope) -> int:
    """Return the weight of an append: the unit, about 10 µs."""
    return 1


def by_items(envelope: Envelope) -> int:
    """Return the weight of a command that lists things."""
    return 1 + len(envelope.body) // _ITEM_BYTES


def turn(envelope: Envelope) -> int:
    """Return the weight of a command that changes as many rows as only the state knows."""
    return TURN


class Traits(NamedTuple):
    """The traits of a kind of envelope."""

    disk: DiskUse
    level: int
    """The level from which it may be written (`virtual.levels`); `Level.admits` holds it."""
    weight: Callable[[Envelope], int]
    """The cost of applying one, from the envelope alone; never less than 1."""
    publishes: frozenset[RowKind] = frozenset()
    """The kinds of published rows that applying one may change."""
    answered_across_workers: bool = False
    """Whether the owner publishes the outcome for a worker that sent it."""
    carries_batch: bool = False
    """Whether its body holds a record batch."""


COMMANDS: dict[Kind, type] = {}
"""The class of each kind of envelope."""
TRAITS: dict[Kind, Traits] = {}
FORMS: dict[Kind, list[str]] = {}
"""The codes of the fields of a body, for each kind that has a form."""
Command = TypeVar("Command")


def of_kind(
    kind: Kind,
    disk: DiskUse,
    weight: Callable[[Envelope], int] = one,
    publishes: tuple[RowKind, ...] = (),
    *,
    level: int,
    answered_across_workers: bool = False,
    carries_batch: bool = False,
    **form: Any,
) -> Callable[[type[Command]], type[Command]]:
    """Say which kind of envelope a class stands for, and its traits: see `Traits`.

    `form`: what gives the bytes of a `Command` (`forms.complete`); another class has `envelope` and
    `decode` of its own.
    """

    def register(command: type[Command]) -> type[Command]:
        assert kind not in COMMANDS, f"{kind.name} has two classes"
        if issubclass(command, forms.Command):
            command, FORMS[kind] = forms.complete(kind, command, **form)
        else:
            assert not form, f"{kind.name} is no Command, and has a form"
        COMMANDS[kind] = command
        TRAITS[kind] = Traits(
            disk, level, weight, frozenset(publishes), answered_across_workers, carries_batch
        )
        return command

    return register
