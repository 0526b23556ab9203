"""`kproxy create`, `alter`, `produce` and `consume` against a served kproxy."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from kproxy.tools.records.consume import _Reading
from tests.forked import begin_kproxy, run_kproxy
from tests.harness import Served, eventually


def run(
    server: Served, *arguments: object, stdin: str | None = None, status: int = 0
) -> subprocess.CompletedProcess[str]:
    done = run_kproxy(*arguments, "--bootstrap-server", server.address, stdin=stdin)
    assert done.returncode == status, (arguments, done.stdout, done.stderr)
    return done


def settings(server: Served, queue: str) -> dict[str, str]:
    found: dict[str, Any] = json.loads(run(server, "describe", queue, "--json").stdout)
    return dict(found["settings"])


def test_queues_are_created_and_altered(server: Served, queue: str) -> None:
    other = f"{queue}-2"
    made = run(server, "create", queue, "-", "--partitions", 3, "--set", "retention.ms=5000",
               stdin=f"{other}\n\n{queue}\n")  # fmt: skip
    assert made.stdout == "created 2\n"
    assert settings(server, queue) == {"retention.ms": "5000"}
    again = run(server, "create", queue, f"{queue}-3", status=1)
    assert (again.stdout, len(again.stderr.splitlines())) == ("created 1\n", 1)
    assert f"{queue}: TOPIC_ALREADY_EXISTS" in again.stderr
    assert "--if-not-exists" in again.stderr
    assert run(server, "create", queue, "--if-not-exists").stdout == "created 0\n"
    assert run(server, "create", f"{queue}-4", "--dry-run").stdout == "valid 1\n"
    altered = run(server, "alter", queue, other, "--set", "max.message.bytes=2000", "--unset",
                  "retention.ms", "--json")  # fmt: skip
    assert [json.loads(line)["queue"] for line in altered.stdout.splitlines()] == [queue, other]
    assert settings(server, other) == {"max.message.bytes": "2000"}
    refused = run(server, "alter", queue, f"{queue}-4", "--set", "retention.ms=x", status=1)
    assert refused.stdout == "altered 0\n"
    assert [line.partition(": ")[2].partition(": ")[2][:14] for line in
            refused.stderr.splitlines()] == ["INVALID_CONFIG", "UNKNOWN_TOPIC_"]  # fmt: skip


def test_groups_are_altered(server: Served, queue: str) -> None:
    limit = "share.delivery.count.limit"
    assert run(server, "alter", queue, "--group", "--set", f"{limit}=3").stdout == "altered 1\n"
    refused = run(server, "alter", queue, "--group", "--set", f"{limit}=99", status=1)
    assert "less than or equal" in refused.stderr


def test_a_thousand_refusals_are_twenty_lines(server: Served, queue: str) -> None:
    names = "".join(f"{queue}/{i}\n" for i in range(1000))
    refused = run(server, "create", "-", stdin=names, status=1).stderr.splitlines()
    assert len(refused) == 21
    assert "980 more, 1000 refused in all" in refused[-1]


def test_records_are_produced_and_consumed(server: Served, queue: str, tmp_path: Path) -> None:
    lines = "".join(f"k{i}:v:{i}\n" for i in range(5))
    done = run(server, "produce", queue, "--format", "%k:%v", "--header", "h=1", "--timestamp",
               "2026-01-01T00:00:00Z", "--compression", "lz4", stdin=lines)  # fmt: skip
    assert done.stdout == "produced 5\n"
    shown = run(server, "consume", queue, "--format", r"%t %p %o %k %v %h %d\n").stdout
    assert shown.splitlines()[4] == f"{queue} 0 4 k4 v:4 h=1 1767225600000"
    for place, found in (("2", [2, 3, 4]), ("-2", [3, 4]), ("1:3", [1, 2]), ("end", []),
                         ("@1767225600000", [0, 1, 2, 3, 4]), ("@-1h", [])):  # fmt: skip
        some = run(server, "consume", queue, "--offset", place, "--format", r"%o\n").stdout
        assert [int(line) for line in some.splitlines()] == found, place
    assert run(server, "consume", queue, "--num", 2).stdout == "v:0\nv:1\n"
    assert run(server, "consume", queue, "--offset", "99").stdout == ""
    as_json = run(server, "consume", queue, "--json").stdout
    copy, raw = tmp_path / "lines.json", tmp_path / "raw"
    copy.write_text(as_json)
    raw.write_text("one\ntwo\n")
    run(server, "produce", f"{queue}-2", "--format", "json", "--file", copy)
    assert run(server, "consume", f"{queue}-2", "--json").stdout == as_json.replace(
        queue, f"{queue}-2"
    )
    one = run(server, "produce", f"{queue}-3", "--format", "raw", "--file", raw, "--file", copy)
    assert one.stdout == "produced 2\n"
    matched = run(server, "consume", f"{queue}-[23]", "--regex", "--num", 7, "--format", r"%t\n")
    assert sorted(set(matched.stdout.split())) == [f"{queue}-2", f"{queue}-3"]


def test_refused_records_are_told_by_line(server: Served, queue: str) -> None:
    run(server, "create", queue, "--set", "max.message.bytes=1000")
    lines = f"a:1\nno key\nb:{'x' * 2000}\nc:3\n"
    done = run(server, "produce", queue, "--format", "%k:%v", stdin=lines, status=1)
    assert done.stdout == "produced 2\n"
    told = sorted(done.stderr.splitlines())
    assert [line[:15] for line in told] == ["kproxy: line 2:", "kproxy: line 3:"]
    assert "MESSAGE_TOO_LARGE" in told[1]
    elsewhere = run(server, "produce", queue, "--partition", 7, stdin="x\n", status=1)
    assert "no such partition" in elsewhere.stderr
    delayed = run(server, "produce", queue, "--delay", "1s", stdin="x\n", status=1)
    assert "--set kproxy.delay=header" in delayed.stderr


def test_a_tombstone_and_a_delayed_record(server: Served, queue: str) -> None:
    run(server, "create", queue, "--set", "kproxy.delay=header")
    run(server, "produce", queue, "--key", "k", "--tombstone", stdin="\n")
    run(server, "produce", queue, "--delay", "1ms", stdin="later\n")
    shown = run(server, "consume", queue, "--follow", "--num", 2, "--json").stdout.splitlines()
    first, second = map(json.loads, shown)
    assert (first["key"], first["value"]) == ("k", None)
    assert (second["value"], second["headers"][0]["value"]) == ("later", "1")


def test_a_group_goes_on_where_it_was(server: Served, queue: str) -> None:
    run(server, "produce", queue, stdin="a\nb\nc\n")
    reads = ("consume", queue, "--group", queue, "--num")
    assert run(server, *reads, 2).stdout == "a\nb\n"
    assert run(server, *reads, 9).stdout == "c\n"


def test_only_committed_records_are_shown(server: Served, queue: str) -> None:
    producer = Producer(
        {"bootstrap.servers": server.address, "transactional.id": queue, "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(queue, b"aborted")
    producer.flush(20)
    assert run(server, "consume", queue).stdout == ""  # while it is open
    producer.abort_transaction(20)
    assert run(server, "consume", queue).stdout == ""
    assert run(server, "consume", queue, "--uncommitted").stdout == "aborted\n"


ENDS: dict[str, Callable[[Any], None]] = {
    "SIGINT": lambda process: process.send_signal(signal.SIGINT),
    "SIGTERM": lambda process: process.send_signal(signal.SIGTERM),
    "a closed pipe": lambda process: process.stdout.close(),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_reader_that_follows_ends(server: Served, queue: str, how: str) -> None:
    run(server, "produce", queue, stdin="a\n")
    process = begin_kproxy("consume", queue, "--follow", "--bootstrap-server", server.address)
    assert process.stdout
    assert process.stderr
    with process.stderr, process.stdout:
        assert process.stdout.readline() == "a\n"
        ENDS[how](process)
        eventually(lambda: process.poll() is not None, 30)
        assert (process.returncode, process.stderr.read()) == (0, "")


def test_mistakes_get_one_line_each(server: Served, queue: str) -> None:
    for arguments, status, says in (
        (("create", queue, "--set", "x"), 2, "KEY=VALUE"),
        (("create", "-"), 2, "no names"),
        (("alter", queue), 2, "--set KEY=VALUE or --unset KEY"),
        (("alter", queue, "--set", "a=1", "--unset", "a"), 2, "the same setting: a"),
        (("produce", queue, "--format", "%q"), 2, "no %q"),
        (("produce", queue, "--file", "/no/such/file"), 1, "cannot read /no/such/file"),
        (("produce", "a b"), 1, "INVALID_TOPIC_EXCEPTION"),
        (("consume", f"{queue}-none"), 1, "`kproxy queues` lists what there is"),
        (("consume", "no-such-.*", "--regex"), 1, "no queue is matched"),
        (("consume", "(", "--regex"), 1, "--regex (:"),
        (("consume", queue, "--offset", "x"), 2, "START:END"),
        (("consume", queue, "--group", "g", "--offset", "7"), 2, "start or end"),
    ):
        done = run(server, *arguments, stdin="", status=status)
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_refusal_of_a_fetch_ends_the_reader() -> None:
    """FAULT: a reader without a group passed over it, and never came to an end."""
    reading = _Reading.__new__(_Reading)
    reading._group = None
    assert reading._is_refusal(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert not reading._is_refusal(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert not reading._is_refusal(KafkaError(KafkaError._TRANSPORT))
    reading._group = "g"
    assert reading._is_refusal(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
