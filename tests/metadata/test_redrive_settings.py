"""Settings of redrives: each by itself, and together. A refusal is a line that says what to do."""

import pytest

from kproxy.common.errors import KafkaError
from kproxy.metadata import queue_settings
from kproxy.metadata.levels import Level
from kproxy.metadata.queue_settings import settings_of
from kproxy.metadata.redrive_settings import REDRIVE_SETTINGS
from tests.metadata.test_route_settings import in_a_line

TO, FILTER, JOB = "kproxy.redrive.to", "kproxy.redrive.filter", "kproxy.redrive.job"
RATE, PAUSED, TIMES_MAX = (
    "kproxy.redrive.rate", "kproxy.redrive.paused", "kproxy.redrive.times.max",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        (TO, " jobs ", "jobs"), (TO, "*", "*"), (TO, "eu-*", "eu-*"), (TO, "", ""),
        (FILTER, " header:kind:x ", "header:kind:x"), (JOB, "2026-11-26T16:00Z", None),
        (RATE, " 50/s ", "50/s"), (RATE, "5/h", None), (RATE, "", ""),
        (PAUSED, "TRUE", "true"), (TIMES_MAX, "1", None),
    ],
)  # fmt: skip
def test_read(name: str, given: str, read: str | None) -> None:
    assert queue_settings.check({name: given}) == {name: given if read is None else read}


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        (RATE, "0/s", "the number from 1 to"), (RATE, "0", "a rate is NUMBER/s, /m or /h"),
        (RATE, "-1/s", "a rate is NUMBER/s"), (RATE, "fast", "a rate is NUMBER/s"),
        (TO, "a b", "it must be a queue's name"), (TO, "__jobs", "queue"), (TO, "*jobs", "queue"),
        (TO, "__*", "before \\* there must be"), (TO, "a/*", "before \\* there must be"),
        (TO, "l" * 250, "queue's name"), (TO, "j\x1b[2J", "queue's name"),
        (FILTER, "kind", "header:NAME"), (FILTER, "header:kind:%", "%"),
        (JOB, "j" * 101, "100 characters"), (JOB, "a\x00b", "text"),
        (PAUSED, "yes", "true or false"),
        (TIMES_MAX, "0", "from 1 to 1000000"), (TIMES_MAX, "many", "whole number"),
    ],
)  # fmt: skip
def test_refused(name: str, given: str, said: str) -> None:
    with pytest.raises(KafkaError, match=said) as refused:
        queue_settings.check({name: given})
    in_a_line(refused.value, name)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({FILTER: "header:a"}, f"{FILTER} has no effect without {TO}: set both, or neither"),
        ({JOB: "1"}, f"{JOB} has no effect without {TO}"),
        ({RATE: "5/s"}, f"{RATE} has no effect without {TO}"),
        ({PAUSED: "true"}, f"{PAUSED} has no effect without {TO}"),
        ({TIMES_MAX: "5"}, f"{TIMES_MAX} has no effect without {TO}"),
        ({TO: "*", "kproxy.route.to": "d-{key}", "kproxy.route.unroutable": "lost"},
         f"{TO} and kproxy.route.to exclude each other"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(values: dict[str, str], said: str) -> None:
    with pytest.raises(KafkaError) as refused:
        queue_settings.check_together(values, Level())
    assert said in (refused.value.message or "")


def test_sound_together() -> None:
    for values in (
        {TO: "*", FILTER: "header:a", JOB: "1", RATE: "5/s", PAUSED: "true", TIMES_MAX: "9"},
        {setting.name: setting.default for setting in REDRIVE_SETTINGS},  # as a tool copies all
        {TO: "jobs", "kproxy.route.from": "dlq.all"},
    ):
        queue_settings.check_together(values, Level())


def test_they_need_a_level() -> None:
    with pytest.raises(KafkaError, match=r"needs level 9.*upgrade --finalize"):
        queue_settings.check_together({TO: "*"}, Level(8))


def test_a_rate_is_the_time_between_two_records() -> None:
    assert settings_of({RATE: "50/s"}).redrive_every_s == 0.02
    assert settings_of({RATE: "5/h"}).redrive_every_s == 720
    assert settings_of({}).redrive_every_s == 0
