"""The boundary to the client library: its exception ends here.

Everything above `kproxy.upstream` knows one exception for a cluster that does not answer,
`KafkaError`. The imports are checked (`lint-imports`), and a test raises the library's exception
from each of its calls.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka.admin import AdminClient

from kproxy.common.errors import Code, KafkaError
from kproxy.upstream.settings import Upstream

_log = structlog.get_logger()

_REST_S = 0.1
CLOSE_S = 2.0
"""The seconds that a close waits for a thread that may be in a call to a silent cluster.

The thread is left then. It closes its client when the call ends, or the process ends it.
"""
NO_ANSWER = "the cluster does not answer"


def reason_of(error: KafkaException) -> str:
    """Return the library's words for a person."""
    cause: Any = error.args[0] if error.args else error
    return str(cause.str()) if hasattr(cause, "str") else str(cause)


@contextmanager
def translated(failed: str = NO_ANSWER, code: Code = Code.NOT_LEADER_OR_FOLLOWER) -> Iterator[None]:
    """Raise KafkaError for what the client library raises."""
    try:
        yield
    except KafkaException as error:
        raise KafkaError(code, f"{failed}: {reason_of(error)}") from error


@contextmanager
def noted(doing: str) -> Iterator[None]:
    """Log what the client library raises, and go on: a thread that others wait for may not end."""
    try:
        yield
    except KafkaException as error:
        _log.warning("client_failed", doing=doing, reason=reason_of(error))
        time.sleep(_REST_S)


def admin_client(upstream: Upstream) -> AdminClient:
    """Return a client for questions. Raises KafkaError where librdkafka refuses the settings."""
    with translated("librdkafka refuses the settings"):
        return AdminClient(upstream.settings())


def consumed(consumer: Consumer, most: int, wait_s: float) -> list[Message]:
    """Return what has come, and wait for the first of it.

    A failure of the second call may not lose what the first one brought. Raises KafkaException.
    """
    messages: list[Message] = consumer.consume(1, wait_s)
    if messages:
        with suppress(KafkaException):
            messages += consumer.consume(most, 0)
    return messages
