"""`kproxy bulk` on both storages: begun, shown, changed and ended."""

import re

from tests.clients.calls import create
from tests.clients.topics.test_commands import lines, run
from tests.forked import run_kproxy
from tests.harness import eventually
from tests.workers import Site


def names(site: Site, prefix: str) -> list[str]:
    return [line["name"] for line in lines(site, "queues", "--match", f"{prefix}.*")]


def test_queues_are_set_and_deleted_by_a_job(site: Site, queue: str) -> None:
    queue = queue[:9]  # the table of jobs cuts long names
    doomed = [f"{queue}-a-{number:02}" for number in range(30)]
    kept = [f"{queue}-b-{number:02}" for number in range(3)]
    create(site.address, *doomed, *kept)
    eventually(lambda: len(names(site, queue)) == 33, 30)
    settings = ("--set", "retention.ms=86400001", "--yes", "--watch")
    (told,) = lines(site, "bulk", f"{queue}-s", "--match", f"{queue}-.-0.*", *settings)
    assert (told["state"], told["done"], told["queues"]) == ("over", 13, 13)
    set_ = [lines(site, "describe", name)[0]["settings"] for name in (doomed[0], kept[2])]
    assert set_ == [{"retention.ms": "86400001"}] * 2
    asked = run_kproxy(
        "bulk", "--prefix", f"{queue}-a", "--delete", "--bootstrap-server", site.address,
        stdin="n\n",
    )  # fmt: skip
    assert asked.returncode == 130
    assert doomed[19] in asked.stderr
    assert "… and 10 more" in asked.stderr
    assert len(names(site, queue)) == 33

    slow = ("--delete", "--yes", "--rate", "1/h")
    (told,) = lines(site, "bulk", f"{queue}-d", "--prefix", f"{queue}-a", *slow)
    assert (told["state"], told["queues"]) == ("running", 30)
    eventually(lambda: lines(site, "bulk", f"{queue}-d")[0]["done"] == 1, 30)
    assert run(site, "bulk", f"{queue}-d", "--pause").returncode == 0
    table = run(site, "bulk").stdout
    line = rf"^{queue}-d +delete +prefix:{queue}-a +paused +1 +0 +30 "
    assert re.search(line, table, re.MULTILINE)
    (told,) = lines(site, "bulk", f"{queue}-d", "--resume", "--rate", "100/s", "--watch")
    assert (told["state"], told["done"], told["refused"]) == ("over", 30, 0)
    eventually(lambda: names(site, queue) == kept, 30)
    assert run(site, "bulk", f"{queue}-d", "--stop").stdout == f"stopped {queue}-d\n"
    again = run(site, "bulk", f"{queue}-d", "--stop")
    assert again.returncode == 1
    assert "there is no job" in again.stderr


def test_mistakes_get_one_line_each(site: Site) -> None:
    for arguments, status, says in (
        (("--delete",), 2, "which queues"),
        (("--match", "a"), 2, "which queues"),
        (("--match", "(", "--delete"), 2, "no expression"),
        (("--match", "a", "--delete", "--set", "a=b"), 2, "exclude"),
        (("--pause",), 2, "name the job"),
        (("--match", "no-such-queue", "--delete", "--yes"), 1, "no queue matches"),
        (("no-such-job",), 1, "there is no job"),
        (("no-such-job", "--pause"), 1, "deletes or sets"),
    ):
        done = run(site, "bulk", *arguments)
        assert done.returncode == status, (arguments, done.stderr)
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
