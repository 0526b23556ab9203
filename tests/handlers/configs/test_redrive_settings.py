"""Redrives asked for by CreateTopics, IncrementalAlterConfigs and AlterConfigs."""

from kproxy.common.errors import Code
from kproxy.virtual.levels import LIFE_FROM
from tests.handlers.configs.test_route_settings import (
    DELETE,
    INVALID,
    OK,
    SET,
    Queues,
    refused,
    told,
)

TO, FILTER, JOB = "kproxy.redrive.to", "kproxy.redrive.filter", "kproxy.redrive.job"
RATE, PAUSED, TIMES_MAX = (
    "kproxy.redrive.rate", "kproxy.redrive.paused", "kproxy.redrive.times.max",
)  # fmt: skip
ENTRANCE = {"kproxy.route.to": "d-{key}", "kproxy.route.unroutable": "lost"}


async def with_letters() -> Queues:
    client = Queues()
    for name in ("dlq.a", "jobs"):
        assert await client.create(name) == OK
    await client.produce("dlq.a", b"x", b"y")
    return client


async def test_bad_redrives_are_refused_wherever_they_are_set() -> None:
    client = await with_letters()
    for configs, words in (
        ({TO: "dlq.a"}, (f"{TO}=dlq.a is this queue itself", "name another")),
        ({TO: "none"}, (f"{TO}=none", "create it first")),
        ({TO: "jobs", RATE: "0/s"}, (RATE, "the number from 1 to")),
        ({RATE: "5/s"}, (f"no effect without {TO}", "set both")),
        ({TO: "*", FILTER: "tag = 'red'"}, (FILTER, "a condition must be")),
        ({TO: "jobs", **ENTRANCE}, ("exclude each other",)),
    ):
        changes = [(name, SET, value) for name, value in configs.items()]
        for dry in (True, False):
            refused(await client.change("dlq.a", *changes, dry=dry), INVALID, *words)
            refused(await client.replace("dlq.a", configs, dry=dry), INVALID, *words)
        if TO not in configs or configs[TO] != "dlq.a":
            refused(await client.create("made", configs), INVALID, *words)
    refused(await client.create("made", {TO: "made"}), INVALID, "this queue itself")
    assert client.configs("dlq.a") == {}
    client.worker.level.value = LIFE_FROM - 1
    refused(await client.change("dlq.a", (TO, SET, "jobs")), INVALID, f"needs level {LIFE_FROM}")


async def test_a_redrive_goes_on_as_it_began_until_another_job_is_named() -> None:
    client = await with_letters()
    assert await client.change("dlq.a", (TO, SET, "jobs"), (JOB, SET, "1")) == OK
    for change in ((TO, SET, "*"), (FILTER, SET, "key:a"), (TIMES_MAX, SET, "5")):
        refused(await client.change("dlq.a", change), INVALID, "goes on as it began", JOB)
    assert await client.change("dlq.a", (RATE, SET, "5/s"), (PAUSED, SET, "true")) == OK
    assert await client.change("dlq.a", (RATE, DELETE, None), (PAUSED, SET, "false")) == OK
    assert await client.change("dlq.a", (TO, SET, "*"), (JOB, SET, "2")) == OK
    gone = [(name, DELETE, None) for name in (TO, JOB, PAUSED)]
    assert await client.change("dlq.a", *gone) == OK
    assert client.configs("dlq.a") == {}


async def test_how_a_redrive_stands_is_told_of_its_last_job() -> None:
    """Nobody passes anything on here: what is produced waits."""
    client = await with_letters()
    assert await client.change("dlq.a", (TO, SET, "jobs"), (JOB, SET, "1")) == OK
    await client.produce("dlq.a", b"later")
    stands = {
        "queue": "dlq.a", "partition": 0, "landed": 0, "end": 2, "lag": 2, "made": 0,
        "waits": None, "redrive": "1", "begin": 0,
    }  # fmt: skip
    assert await told(client, "dlq.a") == [stands]
    assert await client.change("dlq.a", (JOB, SET, "2")) == OK
    assert await told(client, "dlq.a") == [stands | {"redrive": "2", "end": 3, "lag": 3}]
    assert await client.change("dlq.a", (TO, DELETE, None), (JOB, DELETE, None)) == OK
    assert await told(client, "dlq.a") == []
    assert (await client.create("new", {TO: "*"}))[0] == Code.NONE
    (empty,) = await told(client, "new")
    assert (empty["end"], empty["lag"], empty["redrive"]) == (0, 0, "")
