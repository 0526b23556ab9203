"""An entrance: one queue that Spark writes to or reads, and kproxy has a queue for each key.

kproxy passes each of its records on to the queue that a template names: `user-{key}`,
`t.{header:tenant}.{key}`. To Spark it is one topic, whatever the number of queues.
"""

import re
from typing import Any
from urllib.parse import unquote_to_bytes

import pipeline
import secured
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_TO, _LOST = "kproxy.route.to", "kproxy.route.unroutable"
_LEGAL = r"^[a-zA-Z0-9._-]{1,249}\z"  # not $, which is before a line's end too
_WAIT_S = 30


def make(given: dict[str, Any], queue: str, to: str) -> None:
    """See to it that there is an entrance whose template is `to`. Raises ClickException.

    `given`: the job's options.
    """
    admin = secured.admin(given["server"], given["options"])
    topic = NewTopic(queue, 1, config={_TO: to, _LOST: f"{queue}.unroutable"})
    try:
        admin.create_topics([topic])[queue].result(_WAIT_S)
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            pipeline.fail(f"no entrance {queue}: {reason.str()}")
        there, _ = _settings(given, queue)
        if there != to:
            pipeline.fail(f"the entrance {queue} is there already, to {there}: not to {to}")


def _settings(given: dict[str, Any], queue: str) -> tuple[str, str]:
    """Return its template, and its queue for records that the template names none for.

    Raises ClickException.
    """
    admin = secured.admin(given["server"], given["options"])
    resource = ConfigResource(ResourceType.TOPIC, queue)
    try:
        told = admin.describe_configs([resource])[resource].result(_WAIT_S)
    except KafkaException as error:
        pipeline.fail(f"no entrance {queue}: {error.args[0].str()}")
    if _TO not in told or not told[_TO].value:
        pipeline.fail(f"{queue} is not an entrance: it has no {_TO}")
    return told[_TO].value, told[_LOST].value


def name_of(template: str) -> Column:
    """Return the name that a template makes of a row's key and headers, or null."""
    prefix, *rest = re.split(r"\{([^{}]*)\}", template)
    parts = [F.lit(prefix)]
    for field, behind in zip(rest[::2], rest[1::2], strict=True):
        value = F.col("key")
        if field != "key":
            value = _last(unquote_to_bytes(field.removeprefix("header:")).decode())
        text = value.cast("string")
        parts += [F.when(F.length(text) > 0, text), F.lit(behind)]
    name = F.concat(*parts)
    return F.when(name.rlike(_LEGAL) & ~name.startswith("__"), name)


def _last(header: str) -> Column:
    """Return the value of the last header of a name, or null."""
    named = F.filter("headers", lambda one: one["key"] == header)
    return F.try_element_at(named, F.lit(-1))["value"]


def passed_on(frame: DataFrame, given: dict[str, Any], queue: str) -> DataFrame:
    """Return rows of an entrance, `topic` being the queue that each was passed on to.

    Partition and offset are the entrance's: they order a queue's rows as well.
    """
    template, lost = _settings(given, queue)
    named = name_of(template)
    named = F.when(named != queue, named)
    return frame.withColumn("topic", F.coalesce(named, F.lit(lost)))
