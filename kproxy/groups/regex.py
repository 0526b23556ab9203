"""Subscriptions by regular expression (RE2, as in Kafka: its time is linear in the name)."""

from typing import Any

import re2  # type: ignore[import-untyped]

from kproxy.errors import Code, KafkaError

_QUIET = re2.Options()
_QUIET.log_errors = False


def compiled(regex: str) -> Any:
    """A pattern with `fullmatch`. Raises KafkaError (INVALID_REGULAR_EXPRESSION)."""
    try:
        return re2.compile(regex, _QUIET)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        reason = said.decode() if isinstance(said, bytes) else str(said)
        raise KafkaError(
            Code.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}.",
        ) from None
