"""Subscriptions by regular expression (RE2, as in Kafka: its time is linear in the name).

When not everybody may see every queue, a group keeps with an expression who subscribes to it, as
one text: it matches what that client may describe. So two members with one expression may read
different queues, and none is given one that it may not know of.
"""

from typing import Any, NamedTuple, Protocol

import orjson
import re2  # type: ignore[import-untyped]

from kproxy.common.errors import Code, KafkaError
from kproxy.security.audience import ALL, Audience

_QUIET = re2.Options()
_QUIET.log_errors = False


_OWNED = "\0"


class Pattern(NamedTuple):
    """A regular expression, and whose it is; without a principal nobody knows: `Readers`."""

    regex: str
    principal: str = ""
    host: str = ""

    def text(self) -> str:
        """Return the text that a group keeps."""
        return _OWNED + orjson.dumps(list(self)).decode() if self.principal else self.regex


def pattern_of(text: str) -> Pattern:
    """Return the pattern of a text that a group keeps."""
    if text.startswith(_OWNED):
        return Pattern(*orjson.loads(text[len(_OWNED) :]))
    return Pattern(text)


class Readers(Protocol):
    """The rules of who may know of which queue."""

    @property
    def generation(self) -> int:
        """Another one where that has changed."""
        ...

    def audience(self, principal: str, host: str) -> Audience: ...


class Everybody:
    """The rules by which everybody may know of all."""

    generation = 0

    def audience(self, principal: str, host: str) -> Audience:
        return ALL


def compiled(regex: str) -> Any:
    """Return a pattern with `fullmatch`. Raise KafkaError (INVALID_REGULAR_EXPRESSION)."""
    if regex.startswith(_OWNED):
        raise KafkaError(Code.INVALID_REGULAR_EXPRESSION, "a regular expression begins with a NUL")
    try:
        return re2.compile(regex, _QUIET)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        reason = said.decode() if isinstance(said, bytes) else str(said)
        raise KafkaError(
            Code.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}.",
        ) from None
