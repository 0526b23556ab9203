"""Offsets that run out for real, with the shortest retention there is: a minute."""

import time

import pytest

from tests.clients.groups.members import KINDS
from tests.clients.groups.test_group_tools import commit, committed, fill, groups
from tests.harness import eventually
from tests.workers import Site

pytestmark = pytest.mark.long

FLAGS = ("--offsets-retention-minutes", "1", "--offsets-check-ms", "1000")


def test_offsets_run_out_unless_they_are_used(site: Site, queue: str) -> None:
    fill(site, queue, 3)
    fill(site, queue + "-2", 3)
    member = KINDS["librdkafka"](site.address, "used", [queue]).start()
    eventually(lambda: len(member.seen) == 3, 30)
    commit(site, "alone", queue, 2)
    began = time.monotonic()
    eventually(lambda: committed(site, "alone", queue) == -1001, 90, 1)
    assert time.monotonic() - began > 55
    assert "alone" not in groups(site, "--list").split()
    assert committed(site, "used", queue) == 3  # its member reads it
    member.stop()
    assert committed(site, "used", queue) == 3
    eventually(lambda: committed(site, "used", queue) == -1001, 90, 1)
