"""The things that modules and processes of one run share."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import Served
from tests.running.run import Sites, kafka_of_run
from tests.workers import SIDE_BY_SIDE


class Started:
    """A series of servers that are started one after another, and how often they were stopped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.servers: list[Served] = []
        self.stopped = 0

    @contextmanager
    def __call__(self) -> Iterator[Served]:
        server = Served(self._directory / str(len(self.servers))).wait_ready()
        self.servers.append(server)
        try:
            yield server
        finally:
            server.kill()
            self.stopped += 1


def test_server_is_lent_again_until_all_are_closed(tmp_path: Path) -> None:
    sites, start = Sites(), Started(tmp_path)
    for _ in range(2):
        with sites.lent("key", start) as server:
            assert server is start.servers[0]
    with sites.lent("other", start) as server:
        assert server is start.servers[1]
    assert start.stopped == 0
    sites.close()
    assert start.stopped == 2


def test_server_that_ends_or_fails_is_not_lent_again(tmp_path: Path) -> None:
    sites, start = Sites(), Started(tmp_path)

    def harmed(harm: Callable[[Served], None]) -> None:
        with sites.lent("key", start) as server:
            harm(server)

    with pytest.raises(pytest.fail.Exception, match="a shared kproxy has ended"):
        harmed(Served.kill)
    with pytest.raises(pytest.fail.Exception, match="a shared kproxy has ended"):
        harmed(lambda server: server.events.append({"event": "failed", "exception": "…"}))
    assert start.stopped == 2
    with sites.lent("key", start) as server:
        assert server is start.servers[2]
    sites.close()


def test_processes_of_a_run_use_the_kafka_that_one_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Factory:
        def getbasetemp(self) -> Path:
            return tmp_path / "popen-gw0" if SIDE_BY_SIDE else tmp_path

    (tmp_path / "kafka.json").write_text(json.dumps({"port": 1234, "pid": 1}))
    assert kafka_of_run(Factory()).address == "127.0.0.1:1234"  # type: ignore[arg-type]
