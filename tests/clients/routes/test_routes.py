"""Entrances and filters with stock clients: what is put into one queue is in the others, once."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition

from kproxy.routes.cutting import SHIP_FRAME_BYTES
from tests.clients.calls import WAIT_S, create, numbers
from tests.clients.libraries.test_kcat import kcat
from tests.clients.routes.calls import (
    KEYS,
    Record,
    arrived,
    by_key,
    change,
    check,
    delete,
    end_of,
    entrance,
    flush,
    keyed,
    members,
    of_key,
    polled,
    producer,
    put,
    send,
    start_of,
    taking,
)
from tests.clients.shares.members import FLAGS, configure, rest
from tests.clients.transactions.calls import messages, read, transactional, values
from tests.harness import eventually, java
from tests.workers import Site

__all__ = ["FLAGS"]

PROGRAM = Path(__file__).with_name("Routes.java")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_each_record_is_in_the_queue_of_its_key(site: Site, queue: str, codec: str) -> None:
    """And in the entrance: keys, headers, times and order are as they were produced."""
    entrance(site.address, queue, f"{queue}-{{key}}")
    records: list[Record] = [(key, value, {"n": value}) for key, value, _ in keyed(0, 400, KEYS)]
    send(site.address, queue, records, **{"compression.type": codec, "linger.ms": 50})
    wanted = by_key(f"{queue}-", 0, 400)
    check(site.address, {queue: numbers(0, 400), **wanted})
    stamps = {
        one.value(): one.timestamp()
        for one in messages(site.address, [TopicPartition(queue, 0, 0)])[queue, 0]
    }
    found = messages(site.address, [TopicPartition(name, 0, 0) for name in wanted])
    for (name, _), some in found.items():
        for one in some:
            assert f"{queue}-{(one.key() or b'').decode()}" == name
            assert one.headers() == [("n", one.value())]
            assert one.timestamp() == stamps[one.value()]


def test_kcat(site: Site, queue: str) -> None:
    entrance(site.address, queue, f"{queue}-{{header:shop}}-{{key}}")
    taking(site.address, f"{queue}.red", queue, "header:colour:red")
    lines = "".join(f"{n % 3}:{n}\n" for n in range(30))
    kcat(site, "-P", "-t", queue, "-K:", "-H", "shop=a", "-H", "colour=red", stdin=lines)
    kcat(site, "-P", "-t", queue, "-K:", "-H", "shop=b", "-H", "colour=blue", stdin=lines)
    arrived(site.address, {f"{queue}-{s}-{k}": 10 for s in "ab" for k in "012"})
    arrived(site.address, {f"{queue}.red": 30})
    assert kcat(site, "-C", "-t", queue, "-e", "-q", "-K:") == 2 * lines
    assert kcat(site, "-C", "-t", f"{queue}.red", "-e", "-q", "-K:") == lines
    shown = kcat(site, "-C", "-t", f"{queue}-b-1", "-e", "-q", "-f", "%o %k %s %h\n")
    assert shown == "".join(f"{n} 1 {3 * n + 1} shop=b,colour=blue\n" for n in range(10))
    listed = json.loads(kcat(site, "-L", "-J"))
    there = {one["topic"] for one in listed["topics"] if one["topic"].startswith(queue)}
    assert there == {queue, f"{queue}.red"} | {f"{queue}-{s}-{k}" for s in "ab" for k in "012"}


def test_java(site: Site, queue: str) -> None:
    """`Routes.java` makes an entrance and a filter, and says what comes out of them."""
    printed = java(str(PROGRAM), site.address, queue)
    assert [line for line in printed.splitlines() if "=" in line] == [
        "produced=1000",
        "queues=100",
        "in order=true",
        "entrance=1000",
        "red=10",
        "aborted=0",
        "committed=3",
        "unroutable=1 no key",
        "shared=10",
        "kproxy.route.to=" + queue + "-{key} DYNAMIC_TOPIC_CONFIG",
        "refused=InvalidConfigurationException",
    ]


def test_a_transaction_may_be_larger_than_what_may_wait(site: Site, queue: str) -> None:
    """It could never be committed: what it had put there counted, and could not be passed on."""
    entrance(site.address, queue, f"{queue}-{{key}}", lag_max=10)
    client = transactional(site.address, queue, **{"batch.num.messages": 3})
    client.begin_transaction()
    put(client, queue, [(b"k", b"%d" % n, {}) for n in range(40)])
    client.commit_transaction(WAIT_S)
    check(site.address, {f"{queue}-k": numbers(0, 40)})


def test_aborted_records_are_not_passed_on(site: Site, queue: str) -> None:
    """Committed records are passed on once. Open ones wait, and so do the records behind them."""
    entrance(site.address, queue, f"{queue}-{{key}}")
    one, other = (transactional(site.address, f"{queue}-{n}") for n in range(2))

    def write(name: str, value: bytes) -> None:
        client = {"one": one, "other": other}[name]
        put(client, queue, [(b"k", value, {})])
        flush(client)

    one.begin_transaction()
    other.begin_transaction()
    write("one", b"1")
    write("other", b"aborted")
    write("one", b"2")
    one.commit_transaction(WAIT_S)
    send(site.address, queue, [(b"k", b"behind", {})])
    other.abort_transaction(WAIT_S)
    check(site.address, {f"{queue}-k": [b"1", b"2", b"behind"]})
    one.begin_transaction()
    write("one", b"open")
    send(site.address, queue, [(b"k", b"waits", {})])
    other.begin_transaction()
    write("other", b"aborted, too")
    other.abort_transaction(WAIT_S)
    assert end_of(site.address, f"{queue}-k") == 3
    one.commit_transaction(WAIT_S)
    check(site.address, {f"{queue}-k": [b"1", b"2", b"behind", b"open", b"waits"]})


def test_groups_read_the_entrance_and_the_queues_that_it_makes(site: Site, queue: str) -> None:
    """Two members each; the queues are made while the group looks for them."""
    entrance(site.address, queue, f"{queue}-{{key}}", partitions=2)
    pattern = f"^{queue}-k.*"
    with (
        closing(members(site.address, f"{queue}-in", queue)) as in_one,
        closing(members(site.address, f"{queue}-in", queue)) as in_other,
        closing(members(site.address, f"{queue}-out", pattern)) as out_one,
        closing(members(site.address, f"{queue}-out", pattern)) as out_other,
    ):
        client = producer(site.address)
        for part in range(2):
            put(client, queue, keyed(part * 100, part * 100 + 100, KEYS), part)
        flush(client)
        entered = polled([in_one, in_other], 200)
        left = polled([out_one, out_other], 200)
    assert sorted(one.value() or b"" for one in entered) == sorted(numbers(0, 200))
    assert sorted(one.value() or b"" for one in left) == sorted(numbers(0, 200))
    for one in left:
        assert one.topic() == f"{queue}-{(one.key() or b'').decode()}"


def test_a_share_group_works_on_what_a_filter_lets_through(site: Site, queue: str) -> None:
    create(site.address, queue)
    taking(site.address, f"{queue}.jobs", queue, "key:job-&!header:done")
    configure(site.address, queue)
    records: list[Record] = [
        (b"job-%d" % n if n % 2 else b"note-%d" % n, b"%d" % n, {"done": b""} if n % 3 else {})
        for n in range(30)
    ]
    send(site.address, queue, records)
    due = [b"%d" % n for n in range(30) if n % 2 and not n % 3]
    arrived(site.address, {f"{queue}.jobs": len(due)})
    given = rest(site.address, queue, f"{queue}.jobs")
    assert given == [(offset, value, 1) for offset, value in enumerate(due)]
    assert end_of(site.address, queue) == 30


def test_filters_begin_where_they_are_made_or_at_the_start(site: Site, queue: str) -> None:
    """Each has its own records; a deleted one's are gone, and the source's are not."""
    create(site.address, queue)
    send(site.address, queue, keyed(0, 60, 3))
    taking(site.address, f"{queue}.new", queue, "key:k1")
    taking(site.address, f"{queue}.all", queue, from_start="true")
    taking(site.address, f"{queue}.gone", queue)
    send(site.address, queue, keyed(60, 120, 3))
    check(
        site.address,
        {
            f"{queue}.new": of_key(60, 120, 3, 1),
            f"{queue}.all": numbers(0, 120),
            f"{queue}.gone": numbers(60, 120),
        },
    )
    delete(site.address, f"{queue}.gone")
    change(site.address, f"{queue}.new", filter="key:k2")
    send(site.address, queue, keyed(120, 180, 3))
    check(
        site.address,
        {
            f"{queue}.new": of_key(60, 120, 3, 1) + of_key(120, 180, 3, 2),
            f"{queue}.all": numbers(0, 180),
            queue: numbers(0, 180),
        },
    )
    assert end_of(site.address, f"{queue}.gone") == 0


def test_a_template_that_changes_while_records_are_on_their_way(site: Site, queue: str) -> None:
    """From some offset on they go elsewhere: none is lost, none is in both, order is kept."""
    entrance(site.address, queue, f"{queue}-a-{{key}}")
    client, size = producer(site.address), 2000
    put(client, queue, keyed(0, size, KEYS))
    client.poll(0)
    change(site.address, queue, to=f"{queue}-b-{{key}}")
    put(client, queue, keyed(size, 2 * size, KEYS))
    client.poll(0)
    change(site.address, queue, to=f"{queue}-c-{{key}}", configs="retention.ms:3600000")
    flush(client)
    send(site.address, queue, keyed(2 * size, 2 * size + KEYS, KEYS))
    arrived(site.address, {f"{queue}-c-k{key}": 1 for key in range(KEYS)})
    stages = [f"{queue}-{stage}-k{key}" for stage in "abc" for key in range(KEYS)]
    there = [name for name in stages if end_of(site.address, name)]
    found = read(site.address, there)
    for key in range(KEYS):
        passed = [found.get(f"{queue}-{stage}-k{key}", []) for stage in "abc"]
        got = [value for some in passed for _, value in some]
        assert got == of_key(0, 2 * size + KEYS, KEYS, key)


def test_the_largest_record_that_is_taken_is_passed_on(site: Site, queue: str) -> None:
    """FAULT: on a cluster one that its topic just took was too large to go on: it held up all."""
    most = (10 << 20) - SHIP_FRAME_BYTES  # that a queue may have on a cluster
    create(site.address, queue, max_message_bytes=most)
    taking(site.address, f"{queue}-some", queue, "key:k0")
    large = most - 100
    settings = {"message.max.bytes": 30 << 20, "batch.size": 1}
    records: list[Record] = [(b"k0", os.urandom(size), {}) for size in (large, 10)]
    send(site.address, queue, records, **settings)
    check(site.address, {f"{queue}-some": [value for _, value, _ in records]})
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        send(site.address, queue, [(b"k0", os.urandom(large + 200), {})], **settings)


def test_an_entrance_deleted_with_records_on_their_way(site: Site, queue: str) -> None:
    """Its records are there once, in order. The next one of its name passes on its own."""
    entrance(site.address, queue, f"{queue}-{{key}}")
    send(site.address, queue, keyed(0, 4000, KEYS))
    delete(site.address, queue)
    entrance(site.address, queue, f"{queue}-{{key}}")
    send(site.address, queue, keyed(4000, 4400, KEYS))
    send(site.address, queue, [(b"k%d" % key, b"end", {}) for key in range(KEYS)])

    def ended() -> bool:
        found = read(site.address, by_key(f"{queue}-", 0, 1))
        return all(some[-1][1] == b"end" for some in found.values() if some)

    arrived(site.address, dict.fromkeys(by_key(f"{queue}-", 0, 1), 21))
    eventually(ended, WAIT_S)
    found = read(site.address, by_key(f"{queue}-", 0, 1))
    for key in range(KEYS):
        got = [value for _, value in found[f"{queue}-k{key}"]]
        again = [*of_key(4000, 4400, KEYS, key), b"end"]
        first, second = got[: -len(again)], got[-len(again) :]
        assert second == again
        assert first == of_key(0, 4000, KEYS, key)[: len(first)]


def test_a_target_deleted_with_records_on_their_way(site: Site, queue: str) -> None:
    """It is made again at the next record: what came after it is there, and nothing from before."""
    entrance(site.address, queue, f"{queue}-{{key}}", configs="retention.ms:-1")
    client, size = producer(site.address), 4000
    for first in range(0, size, 1000):
        put(client, queue, keyed(first, first + 1000, 2))
        flush(client)
        if first == 1000:
            arrived(site.address, {f"{queue}-k1": 1})
            delete(site.address, f"{queue}-k1")
    send(site.address, queue, [(b"k%d" % key, b"end", {}) for key in range(2)])
    check(site.address, {f"{queue}-k0": [*of_key(0, size, 2, 0), b"end"]})

    def again() -> list[bytes]:
        return values(site.address, f"{queue}-k1")

    eventually(lambda: end_of(site.address, f"{queue}-k1") and again()[-1:] == [b"end"], WAIT_S)
    got, due = again(), [*of_key(0, size, 2, 1), b"end"]
    assert len(got) > 1000
    assert got == due[-len(got) :]


def test_unroutable_record_says_why(site: Site, queue: str) -> None:
    lost = f"{queue}.lost"
    entrance(site.address, queue, f"{queue}{{header:x}}.{{key}}", unroutable=lost)
    entrance(site.address, f"{queue}-2", "_{key}", unroutable=f"{queue}.lost-2")
    records: list[Record] = [
        (None, b"no key", {"x": b"1"}),
        (b"k", b"no header", {}),
        (b"", b"empty", {"x": b"1"}),
        (b"a b", b"a space", {"x": b"1"}),
        (b"k" * 250, b"long", {"x": b"1"}),
        (b"k", b"fine", {"x": b"1"}),
        (b"l\xc3\xb6", b"not ascii", {"x": b"1"}),
    ]
    send(site.address, queue, records)
    send(site.address, f"{queue}-2", [(b"_consumer_offsets", b"reserved", {})])
    check(site.address, {f"{queue}1.k": [b"fine"], f"{queue}.lost-2": [b"reserved"]})
    due = [(k, v, h) for k, v, h in records if v != b"fine"]
    arrived(site.address, {lost: len(due)})
    found = messages(site.address, [TopicPartition(lost, 0, 0)])[lost, 0]
    assert [(one.key(), one.value()) for one in found] == [(key, value) for key, value, _ in due]
    said = [dict(one.headers() or ()) for one in found]
    assert [one["kproxy.route.error"] for one in said] == [
        b"no key",
        b"no header x",
        b"the key is empty",
        b"the key is not a part of a queue name",
        b"the queue name is longer than 249 characters",
        b"the key is not a part of a queue name",
    ]
    assert [one["kproxy.route.offset"] for one in said] == [b"0", b"1", b"2", b"3", b"4", b"6"]
    assert {one["kproxy.route.partition"] for one in said} == {b"0"}
    assert said[0]["x"] == b"1"


def test_an_entrance_that_keeps_nothing(site: Site, queue: str) -> None:
    entrance(site.address, queue, f"{queue}-{{key}}", keep="false")
    send(site.address, queue, keyed(0, 200, KEYS))
    check(site.address, by_key(f"{queue}-", 0, 200))
    eventually(lambda: start_of(site.address, queue) == 200, WAIT_S)
    send(site.address, queue, keyed(200, 400, KEYS))
    check(site.address, by_key(f"{queue}-", 0, 400))
    eventually(lambda: start_of(site.address, queue) == 400, WAIT_S)
    assert end_of(site.address, queue) == 400


def test_two_entrances_that_name_each_other(site: Site, queue: str) -> None:
    """Records that came by a route are not routed on."""
    for name in "ab":
        entrance(site.address, f"{queue}-{name}", f"{queue}-{{key}}")
    send(site.address, f"{queue}-a", [(b"b", b"from a", {})] * 10)
    send(site.address, f"{queue}-b", [(b"a", b"from b", {})] * 10)
    arrived(site.address, {f"{queue}-a": 20, f"{queue}-b": 20})
    for name in "ab":  # passes all that was there before
        send(site.address, f"{queue}-{name}", [(b"z", b"z", {})])
    check(site.address, {f"{queue}-z": [b"z", b"z"]})
    assert [end_of(site.address, f"{queue}-{name}") for name in "ab"] == [21, 21]


def test_a_key_that_names_the_entrance_itself(site: Site, queue: str) -> None:
    entrance(site.address, f"{queue}-self", f"{queue}-{{key}}")
    send(site.address, f"{queue}-self", [(b"self", b"1", {})])
    check(site.address, {f"{queue}-self.lost": [b"1"], f"{queue}-self": [b"1"]})


def test_so_many_queues_and_no_more(site: Site, queue: str) -> None:
    """Beyond `queues.max` it waits, others do not; once that is raised it goes on."""
    entrance(site.address, queue, f"{queue}-{{key}}", queues_max=10)
    entrance(site.address, f"{queue}.other", f"{queue}.other-{{key}}")
    send(site.address, queue, keyed(0, 10, 10))
    arrived(site.address, {f"{queue}-k{key}": 1 for key in range(10)})
    send(site.address, queue, keyed(10, 40, 40))
    send(site.address, f"{queue}.other", keyed(0, 100, KEYS))
    check(site.address, by_key(f"{queue}.other-", 0, 100))
    assert end_of(site.address, f"{queue}-k39") == 0
    assert values(site.address, queue) == numbers(0, 40)
    change(site.address, queue, queues_max=100)
    check(site.address, {f"{queue}-k{key}": [b"%d" % key] for key in range(40)})


def test_lagging_target_takes_no_more(site: Site, queue: str) -> None:
    """Producers wait, and go on once there is room; what was taken is passed on."""
    entrance(site.address, queue, f"{queue}-{{key}}", queues_max=1, lag_max=50)
    send(site.address, queue, [(b"first", b"0", {})])
    arrived(site.address, {f"{queue}-first": 1})
    eventually(lambda: _refused(site.address, queue), WAIT_S)
    taken = end_of(site.address, queue)
    assert taken >= 50
    client = producer(site.address)
    put(client, queue, [(b"late", b"late", {})])
    change(site.address, queue, queues_max=1000)
    flush(client)
    check(site.address, {f"{queue}-late": [b"late"]})
    assert end_of(site.address, f"{queue}-more") == taken - 1


def _refused(address: str, queue: str) -> bool:
    """Whether a producer that does not try again is refused."""
    said: list[str] = []
    client = producer(address, **{"enable.idempotence": False, "retries": 0})
    for _ in range(20):
        client.produce(
            queue, b"more", b"more", 0,
            on_delivery=lambda error, _: said.append(error.name() if error else ""),
        )  # fmt: skip
    flush(client)
    assert set(said) <= {"", "NOT_ENOUGH_REPLICAS"}, said
    return "NOT_ENOUGH_REPLICAS" in said


def test_a_route_from_a_queue_that_is_made_by_a_route_has_nothing_to_give(
    site: Site, queue: str
) -> None:
    """But for what is produced there."""
    entrance(site.address, queue, f"{queue}-{{key}}")
    send(site.address, queue, [(b"k", b"routed", {})])
    arrived(site.address, {f"{queue}-k": 1})
    taking(site.address, f"{queue}.from", f"{queue}-k", from_start="true")
    send(site.address, f"{queue}-k", [(None, b"produced", {})])
    check(site.address, {f"{queue}.from": [b"produced"]})
    with pytest.raises(KafkaException, match="not routed"):
        taking(site.address, f"{queue}.again", f"{queue}.from")
