"""Forms of commands: which kinds have one, and what it gives."""

from typing import Any, cast

import pytest

from kproxy.protocol.batch import CONTROL_BATCH_BYTES
from kproxy.virtual.commands.envelope import Envelope, Kind, decode
from kproxy.virtual.commands.forms import Command, complete
from kproxy.virtual.commands.queues import CreateQueue, GrowQueue
from kproxy.virtual.commands.shards import Foreign
from kproxy.virtual.commands.traits import COMMANDS, FORMS
from kproxy.virtual.types import PartitionKey, QueueId
from tests.virtual.commands.test_commands import WRITTEN

Q = QueueId(bytes(range(16)))
BY_HAND = {
    Kind.APPEND: "a batch", Kind.APPEND_IF: "a batch", Kind.COPY: "a batch",
    Kind.REPLACE: "a batch", Kind.LATER: "batches",
    Kind.DUE: "batches", Kind.SHIP: "batches", Kind.FORWARD: "a batch",
    Kind.COMMIT: "hot; its body depends on the level", Kind.TRANSACTION_COMMIT: "the same",
    Kind.DELETE_OFFSETS: "its body depends on the level", Kind.EXPIRE: "the same",
    Kind.GROUP: "the same; encoded in steps", Kind.SHARE: "hot; items within items",
    Kind.COMPACT: "no form byte", Kind.FORGET_LANDED: "no form byte; two kinds of items",
    Kind.ENLIST: "items of two kinds",
}  # fmt: skip
"""Kinds without a form, and why."""


def test_kinds_without_a_form_are_those_with_a_reason() -> None:
    assert set(Kind) - FORMS.keys() == BY_HAND.keys()


@pytest.mark.parametrize("kind", [kind for kind, codes in FORMS.items() if codes])
def test_a_body_of_a_later_kproxy_is_refused(kind: Kind) -> None:
    body = next(case[4] for case in WRITTEN if case[2] == kind)
    at = CONTROL_BATCH_BYTES if kind == Kind.MARKER else 0
    later = body[:at] + b"\2" + body[at + 1 :]
    with pytest.raises(ValueError, match=f"a command {kind.name} has form 2.*later one"):
        cast(Any, COMMANDS[kind]).decode(Envelope(kind, body=later))


def test_a_command_is_a_frozen_tuple_with_equality_and_defaults() -> None:
    made = CreateQueue(Q, "q", 3, {})
    assert made == CreateQueue(queue_id=Q, name="q", partitions=3, configs={}, unasked=False)
    assert made._replace(name="other") == CreateQueue(Q, "other", 3, {})
    assert repr(Foreign()) == "Foreign()"
    with pytest.raises(AttributeError):
        cast(Any, made).name = "other"
    with pytest.raises(AttributeError):
        cast(Any, GrowQueue(Q, 1)).more = 1


def test_every_kind_of_field_is_read_as_it_was_written() -> None:
    class Everything(Command):
        source: PartitionKey
        target: PartitionKey
        definer: QueueId
        flag: bool
        name: str
        pairs: list[tuple[int, int]]
        nested: list[tuple[PartitionKey, int]]
        names: list[str]
        rest: str
        number: int = 5

    body = (
        "#name:H #nested:H target:P definer:U #pairs:B #names:I flag:? name:T pairs:(qB) "
        "nested:(PH) names:(N) rest:T"
    )
    of: Any
    of, _ = complete(
        Kind.TRIM, Everything, head="key=source number", body=body, make=lambda *item: item
    )
    made = of(
        (Q, 1), (Q, 2), Q, True, "ä", [(-1, 2), (3, 4)], [((Q, 5), 6)], ["", "ö"], "the rest", 7
    )
    envelope = made.envelope()
    assert (envelope.kind, envelope.number) == (Kind.TRIM, 7)
    assert of.decode(decode(envelope.head() + envelope.body)) == made


def test_numbers_stand_before_text_and_items() -> None:
    class Wrong(Command):
        name: str
        number: int

    with pytest.raises(AssertionError, match="number is a number behind what is none"):
        complete(Kind.TRIM, Wrong, body="name:T number:q")
