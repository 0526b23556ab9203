"""`kproxy queues`, `groups`, `describe`, `delete` on both kinds of storage."""

import json
import subprocess
from typing import Any

from tests.clients.calls import create, producer
from tests.clients.groups.test_group_tools import commit
from tests.forked import run_kproxy
from tests.harness import eventually
from tests.workers import Site, known_everywhere


def run(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kproxy(*arguments, "--bootstrap-server", site.address)


def lines(site: Site, *arguments: str) -> list[dict[str, Any]]:
    done = run(site, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def write(site: Site, *counts: tuple[str, int]) -> None:
    client = producer(site.address)
    for name, count in counts:
        for _ in range(count):
            client.produce(name, b"x" * 100)
    assert client.flush(30) == 0
    known_everywhere(site, *(name for name, _ in counts))


def test_queues_are_listed_a_page_at_a_time(site: Site) -> None:
    names = [f"listed-{i:04}" for i in range(2100)]
    for start in range(0, 2100, 700):
        create(site.address, *names[start : start + 700])
    create(site.address, "listed-wide", partitions=7)
    write(site, (names[3], 5), (names[7], 9))
    found = eventually(lambda: wait_all(site, "listed-.*", 2101), 20)
    assert [line["name"] for line in found] == [*names, "listed-wide"]
    assert (found[3]["records"], found[7]["records"]) == (5, 9)
    assert found[7]["bytes"] > found[3]["bytes"] > found[0]["bytes"] == 0
    assert found[-1]["partitions"] == 7
    some = run(site, "queues", "--match", "listed-.*", "--limit", "2", "--from", names[7])
    assert [line.split()[0] for line in some.stdout.splitlines()] == ["QUEUE", *names[7:9]]
    assert f"--from {names[9]}" in some.stderr
    largest = lines(site, "queues", "--match", "listed-.*", "--sort", "records", "--limit", "2")
    assert [line["name"] for line in largest] == [names[7], names[3]]


def wait_all(site: Site, match: str, count: int) -> list[dict[str, Any]] | None:
    found = lines(site, "queues", "--match", match, "--limit", "9999")
    return found if len(found) == count else None


def test_groups_and_their_lag(site: Site, queue: str) -> None:
    write(site, (queue, 10), (queue + "-2", 4))
    commit(site, f"{queue}-a", queue, 7)
    commit(site, f"{queue}-a", queue + "-2", 4)
    commit(site, f"{queue}-b", queue, 10)
    found = lines(site, "groups", "--match", f"{queue}-.*")
    assert [(g["group"], g["type"], g["state"], g["queues"], g["lag"]) for g in found] == [
        (f"{queue}-a", "classic", "Empty", 2, 3), (f"{queue}-b", "classic", "Empty", 1, 0),
    ]  # fmt: skip
    first = run(site, "groups", "--match", f"{queue}-.*", "--limit", "1", "--from", f"{queue}-a")
    assert [line.split()[0] for line in first.stdout.splitlines()] == ["GROUP", f"{queue}-a"]
    assert f"--from {queue}-b" in first.stderr
    described = lines(site, "describe", queue)[0]
    assert described["groups"] == [
        {"group": f"{queue}-a", "committed": {"0": 7}, "lag": 3},
        {"group": f"{queue}-b", "committed": {"0": 10}, "lag": 0},
    ]
    assert [(p["start"], p["end"]) for p in described["partitions"]] == [(0, 10)]
    behind = lines(site, "queues", "--match", f"{queue}.*", "--group", f"{queue}-a",
                   "--sort", "lag")  # fmt: skip
    assert [(line["name"], line["lag"]) for line in behind] == [(queue, 3), (queue + "-2", 0)]
    assert "7" in run(site, "describe", queue).stdout


def test_queues_are_deleted(site: Site, queue: str) -> None:
    write(site, (queue, 1), (f"{queue}-1", 1), (f"{queue}-2", 1))
    asked = run_kproxy("delete", queue, "--bootstrap-server", site.address, stdin="n\n")
    assert asked.returncode == 130
    assert lines(site, "describe", queue)
    assert "deleted 1" in run(site, "delete", queue, "--yes").stdout
    gone = run(site, "delete", queue, "--yes")
    assert gone.returncode == 1
    assert "is it there" in gone.stderr
    eventually(lambda: len(lines(site, "queues", "--match", f"{queue}.*")) == 2)
    assert "deleted 2" in run(site, "delete", "--match", f"{queue}-.*", "--yes").stdout
    eventually(lambda: not lines(site, "queues", "--match", f"{queue}.*"))


def test_mistakes_get_one_line_each(site: Site) -> None:
    for arguments, status, says in (
        (("describe", "no-such-queue"), 1, "there is no queue no-such-queue"),
        (("queues", "--match", "("), 2, "--match ("),
        (("queues", "--sort", "lag"), 2, "needs --group"),
        (("delete",), 2, "name the queues"),
        (("delete", "--match", "no-such-.*", "--yes"), 1, "no queue is matched"),
        (("describe", "q", "--bootstrap-server", "nowhere"), 2, "HOST:PORT"),
        (("queues", "--bootstrap-server", "127.0.0.1:1"), 1, "nothing serves at 127.0.0.1:1"),
    ):
        done = (
            run_kproxy(*arguments) if "--bootstrap-server" in arguments else run(site, *arguments)
        )
        assert done.returncode == status, (arguments, done.stderr)
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
