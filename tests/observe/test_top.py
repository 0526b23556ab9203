"""`kproxy top`: what it makes of two looks, and what it shows of served workers."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from kproxy.common.counters import Busiest
from kproxy.common.errors import CannotStart
from kproxy.tools.top import Source, differences, quantile, ranges, rate, top_command
from tests.forked import run_kproxy as kproxy
from tests.harness import Served, eventually
from tests.observe.test_prometheus import FLAGS, endpoints, load
from tests.workers import Workers

__all__ = ["FLAGS"]  # for the `site`


def test_a_rate_is_made_of_two_looks() -> None:
    before: dict[str, Any] = {"at": 10.0, "counters": {"requests": 5}}
    after: dict[str, Any] = {"at": 12.0, "counters": {"requests": 25}}
    assert rate(before, after, "requests") == 10
    assert rate(after, after, "requests") == 0
    assert rate(after, before | {"at": 14.0}, "requests") == 0  # it was started again


def test_a_quantile_is_of_what_came_between() -> None:
    before: dict[str, Any] = {"h": [[1, 2], [100, 0, 0]]}
    assert quantile(before, {"h": [[1, 2], [100, 99, 1]]}, "h", 0.99) == 2
    assert quantile(before, {"h": [[1, 2], [100, 98, 2]]}, "h", 0.99) == float("inf")
    assert quantile(before, before, "h", 0.99) is None


def test_the_busiest_of_two_looks() -> None:
    before: dict[str, Any] = {"at": 0.0, "queues": [["a", 10, 0]]}
    after: dict[str, Any] = {"at": 2.0, "queues": [["a", 30, 0], ["b", 0, 8]]}
    assert differences(before, after, "queues", 2) == [("a", (10, 0)), ("b", (0, 4))]


@pytest.mark.parametrize(
    ("numbers", "shown"), [([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2 5 7-8")]
)
def test_shards_are_shown_as_ranges(numbers: list[int], shown: str) -> None:
    assert ranges(numbers) == shown


def test_the_busiest_are_kept_and_their_number_is_bounded() -> None:
    busiest = Busiest(10)
    for number in range(1000):
        busiest.add("busy", 5)
        busiest.add(f"q{number}", 1)
    assert busiest.top(1) == [("busy", 5000)]
    assert len(busiest.amounts) <= 10


def test_it_shows_rates_queues_groups_and_shards(site: Served | Workers) -> None:
    where = [part for address in endpoints(site) for part in ("--http", address)]
    with load(site.address):

        def shown() -> bool:
            text = kproxy("top", *where, "--once", "--every", "1.5").stdout
            busy = "seen-0" in text and "seen-group" in text
            workers = 2 if isinstance(site, Workers) else 1
            shards = "8 of 8 served" if workers == 2 else "1 of 1 served"
            return busy and shards in text and text.count("ready") == workers

        eventually(shown, 30)


def test_it_says_where_nobody_answers() -> None:
    done = kproxy("top", "--http", "127.0.0.1:1", "--once")
    assert done.returncode == 1
    assert "no kproxy answers at http://127.0.0.1:1" in done.stderr


def test_a_token_goes_where_it_was_sent_and_nowhere_else() -> None:
    """FAULT: a redirect had it sent to another address."""
    heard: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        source = Source([f"127.0.0.1:{server.server_port}"], "secret", None)
        with pytest.raises(CannotStart):
            source.pages()
        server.shutdown()
    assert heard == ["Bearer secret"]


def test_a_token_needs_an_address(tmp_path: Path) -> None:
    """FAULT: whatever listened at the default port was shown it."""
    token = tmp_path / "token"
    token.write_text("secret")
    done = CliRunner().invoke(top_command, ["--token-file", str(token), "--once"])
    assert isinstance(done.exception, CannotStart)
    assert "--http" in str(done.exception)
