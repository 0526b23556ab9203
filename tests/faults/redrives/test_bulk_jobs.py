"""A bulk job while servers are killed: each queue that was meant goes, and no other does."""

import random
from contextlib import suppress
from typing import Any

from kproxy.common.errors import CannotStart
from kproxy.protocol.name_search import NameSearch
from kproxy.tools.admin.bulk import Jobs
from kproxy.tools.client import Client, Refused
from tests.clients.calls import create
from tests.faults.servers import Servers
from tests.harness import eventually

WORKERS = 2
QUEUES, KILLS = 900, 2
ORDER: dict[str, Any] = {"do": "delete", "search": {"prefix": "bulk-a"}, "rate": "60/s"}


def job(address: str, order: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return how the job stands, once it is ordered; None: nobody says so now."""
    for one in address.split(","):
        host, _, port = one.partition(":")
        with suppress(Refused, CannotStart, OSError), Client((host, int(port))) as client:
            jobs = Jobs(client)
            if order is not None and not jobs.all():
                jobs.change("j", order)
            return jobs.one("j")
    return None


def names(address: str) -> list[str]:
    host, _, port = address.split(",")[0].partition(":")
    with Client((host, int(port))) as client:
        return [topic.name for page in client.pages(NameSearch("bulk-")) for topic in page]


def test_a_job_goes_on_whoever_is_killed(servers: Servers) -> None:
    rng = random.Random(7)
    doomed = [f"bulk-a-{number:04}" for number in range(QUEUES)]
    kept = [f"bulk-b-{number}" for number in range(5)]
    for start in range(0, QUEUES, 300):
        create(servers.address, *doomed[start : start + 300])
    create(servers.address, *kept)
    eventually(lambda: job(servers.address, ORDER), 60)
    made_anew = ""
    for kill in range(1, KILLS + 1):
        wanted = kill * QUEUES // (KILLS + 2)
        eventually(lambda wanted=wanted: done(servers, wanted), 120)  # type: ignore[misc]
        if not made_anew:
            made_anew = doomed[0]
            create(servers.address, made_anew)
        servers.kill(rng)
        servers.wait_ready()
    found = eventually(lambda: is_over(servers), 120)
    assert (found["done"], found["refused"]) == (QUEUES, 0)
    eventually(lambda: names(servers.address) == [made_anew, *kept], 60)


def done(servers: Servers, wanted: int) -> bool:
    found = job(servers.address)
    return found is not None and found["done"] >= wanted


def is_over(servers: Servers) -> dict[str, Any] | None:
    found = job(servers.address)
    return found if found is not None and found["over"] else None
