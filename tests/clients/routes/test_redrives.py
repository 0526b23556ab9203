"""`kproxy redrive` on both storages: begun, shown, changed and ended."""

import subprocess
from typing import Any

import pytest

from tests.clients.calls import create
from tests.clients.routes.calls import arrived, producer
from tests.clients.routes.test_route_tools import described
from tests.clients.shares.test_dead_letters import headers_of, letters
from tests.clients.topics.test_commands import lines, run
from tests.harness import eventually
from tests.workers import Site

LETTERS = 4


def fill(site: Site, dead: str, origin: str, partitions: int = 1) -> None:
    """Put letters into a dead-letter queue, of two kinds in turn."""
    client = producer(site.address)
    for number in range(LETTERS):
        headers = {
            "__dlq.errors.topic": origin, "kproxy.dlq.cause": "rejected",
            "kind": "xy"[number % 2],
        }  # fmt: skip
        client.produce(dead, b"%d" % number, b"key", partition=number % partitions, headers=headers)
    assert client.flush(30) == 0


def said(site: Site, *arguments: str) -> str:
    done = run(site, "redrive", *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def refused(site: Site, *arguments: str) -> str:
    done: subprocess.CompletedProcess[str] = run(site, "redrive", *arguments)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    return line


def stands(site: Site, dead: str) -> dict[str, Any]:
    (found,) = lines(site, "redrive", dead)
    return found


def test_a_redrive_is_begun_shown_changed_and_ended(site: Site, queue: str) -> None:
    dead, other = f"dlq.{queue}", f"{queue}-other"
    create(site.address, dead, queue, other, partitions=2)
    fill(site, dead, queue, 2)
    assert "there is no redrive" in refused(site, dead)
    dry = said(site, dead, "--to-origin", "--dry-run")
    assert dry == f"valid: {LETTERS} records of {dead} would be looked at\n"

    said(site, dead, "--to-origin", "--rate", "2/h")  # one of each partition
    arrived(site.address, {queue: 2})
    eventually(lambda: [part["landed"] for part in stands(site, dead)["partitions"]] == [1, 1], 30)
    assert stands(site, dead)["state"] == "running"
    route = described(site, dead)["redrive to *"]
    assert (route["lag"], route["made"]) == (2, 0)
    assert "a redrive of" in refused(site, dead, "--to", other)
    said(site, dead, "--pause")
    assert stands(site, dead)["state"] == "paused"
    assert "paused" in said(site, dead)
    said(site, dead, "--resume")
    table = said(site, dead, "--rate", "1000/s", "--watch").splitlines()
    assert [line.split()[:2] for line in table] == [["REDRIVE", "TO"], ["*", "over"], ["*", "over"]]
    found = letters(site.address, queue, LETTERS, partitions=2)
    assert sorted(one.value() or b"" for one in found) == [b"%d" % n for n in range(LETTERS)]
    assert [headers_of(one).keys() for one in found] == [{"kind", "kproxy.redriven"}] * LETTERS
    assert "is over" in refused(site, dead, "--pause")

    said(site, dead, "--to", other, "--match", "header:kind:x", "--watch")
    assert {one.value() for one in letters(site.address, other, 2, partitions=2)} == {b"0", b"2"}
    assert stands(site, dead)["state"] == "over"
    assert said(site, dead, "--stop") == "it was over\n"
    assert "there is no redrive" in refused(site, dead)
    assert "redrive" not in str(described(site, dead))


def test_a_redrive_that_is_stopped_brings_nothing_more(site: Site, queue: str) -> None:
    dead = f"dlq.{queue}"
    create(site.address, dead, queue)
    fill(site, dead, queue)
    said(site, dead, "--to", queue, "--rate", "1/h")
    arrived(site.address, {queue: 1})
    assert said(site, dead, "--stop") == "stopped\n"
    said(site, dead, "--to", queue, "--watch")  # it begins anew
    found = [one.value() for one in letters(site.address, queue, 1 + LETTERS)]
    assert found == [b"0", b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--to", "jobs", "--to-origin"), "exclude each other"),
        (("--pause", "--rate", "5/s"), "stands alone"),
        (("--match", "header:a"), "say where the letters go"),
        (("--to-origin", "--rate", "0/s"), "a rate is NUMBER/s, /m or /h"),
        (("--to-origin", "--match", "a = b"), "a condition must be"),
        (("--to", "{dead}"), "this queue itself"),
        (("--to", "none"), "create it first"),
        (("--to-origin", "--max-redrives", "0"), "not in the range"),
        (("--stop",), "there is no redrive"),
        (("--rate", "5/s"), "there is no redrive"),
    ],
)
def test_mistakes_get_one_line_each(
    site: Site, dead: str, arguments: tuple[str, ...], says: str
) -> None:
    line = refused(site, dead, *(one.format(dead=dead) for one in arguments))
    assert line.startswith("kproxy: ")
    assert says in line


@pytest.fixture(scope="module")
def dead(site: Site) -> str:
    create(site.address, "dlq.mistakes")
    return "dlq.mistakes"
