"""The items of a request that are answered each by itself: refused, or as their commands decide."""

from collections.abc import Callable
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.loop.pace import Pace
from kproxy.shard.appends import outcomes_of


class Refusing:
    """A block whose KafkaError is put into an item's answer."""

    __slots__ = ("_answer",)

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, KafkaError):
            return False
        self._answer |= {"error_code": error.code, "error_message": error.message}
        return True


Asked = list[tuple[dict[str, Any], Ticket]]
"""The answers of items, and what decides them."""


async def settle(
    asked: Asked, pace: Pace, shown: Callable[[Code], Code] = lambda code: code
) -> None:
    """Put into each answer what its command has come to; `shown`: the code that is told."""
    outcomes = await outcomes_of(ticket for _, ticket in asked)
    for (answer, _), outcome in zip(asked, outcomes, strict=True):
        answer |= {"error_code": shown(outcome.code_by_name), "error_message": outcome.message}
        await pace.step()
