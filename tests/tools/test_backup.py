"""Backups of a server that goes on, what a restore brings back, and who outlives one."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from kproxy.protocol.api_keys import ApiKey
from kproxy.store.backups import NAME, UNFINISHED
from tests.forked import run_kproxy
from tests.harness import eventually, free_port, served
from tests.present import present
from tests.wire import Wire, batch

BUSY = (
    "--segment-bytes", "1100KiB", "--keeper-period-ms", "20", "--rows-flush-ms-max", "100",
    "--retention-check-ms", "50", "--rows-flush-bytes", "64KiB",
)  # fmt: skip
OUT_OF_RANGE, OUT_OF_ORDER, FENCED = 1, 45, 90


def kproxy(*arguments: object, status: int = 0) -> str:
    """Return its output, or why it refuses."""
    done = run_kproxy(*arguments)
    assert done.returncode == status, done.stdout + done.stderr
    if status == 0:
        assert not done.stderr, done.stderr
        return done.stdout
    assert done.stderr.splitlines()[-1].startswith("kproxy: "), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


def back_up(data: Path, to: Path, *flags: str) -> Path:
    kproxy("backup", "--data-dir", data, "--to", to, *flags)
    kproxy("check", to)
    return to


def restore(backup: Path, data: Path) -> Path:
    kproxy("restore", "--from", backup, "--data-dir", data)
    return data


def everything(common: dict[str, Any], queue: str) -> list[bytes]:
    """Return the values of a queue, without those of transactions that did not commit."""
    consumer = Consumer(
        {**common, "group.id": "c", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(queue, 0, 0)])
    found = []
    while True:
        message = present(consumer.poll(20))
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            consumer.close()
            return found
        found.append(message.value())


class Churn:
    """A writer to a queue that is kept and to one that is not, all the time."""

    def __init__(self, address: str) -> None:
        self.acknowledged = self.sent = 0
        self.failed: list[Any] = []
        self._address = address
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def going_on(self) -> Iterator["Churn"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._end.set()
            self._thread.join()

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._address, "enable.idempotence": True, "linger.ms": 1,
                "batch.num.messages": 50, "log_level": 0,
            }
        )  # fmt: skip
        while not self._end.is_set():
            producer.produce("keep", b"%d" % self.sent, on_delivery=self._note)
            self.sent += 1
            producer.produce("churn", b"c" * 40_000)
            time.sleep(0.002)  # others need the disk, too
            while len(producer) > 100:
                producer.poll(0.01)
        assert producer.flush(30) == 0

    def _note(self, error: Any, message: Any) -> None:
        self.acknowledged += error is None
        if error is not None:
            self.failed.append(error)


def test_backups_while_segments_roll_are_copied_and_dropped(tmp_path: Path) -> None:
    data, found = tmp_path / "data", []
    with served(data, *BUSY) as server:
        with Wire(server.host, server.port) as wire:
            wire.create("churn", retention_bytes="200000")
            wire.create("keep")
        churn = Churn(server.address)
        with churn.going_on():
            for number, flags in enumerate(((), ("--copy",))):
                eventually(lambda: server.event("segment_copied_forward"))
                server.events.clear()
                before = churn.acknowledged
                backup = back_up(data, tmp_path / f"b{number}", *flags)
                found.append((backup, before, churn.sent))
                assert not (data / "backup-staging").exists()
        assert not churn.failed
    kproxy("check", data)
    for backup, before, after in found:
        restored = restore(backup, tmp_path / f"r-{backup.name}")
        with served(restored, *BUSY) as server, Wire(server.host, server.port) as wire:
            kept = everything({"bootstrap.servers": server.address}, "keep")
            assert kept == [b"%d" % number for number in range(len(kept))]
            assert before <= len(kept) <= after
            assert wire.produce("keep", batch(b"v")).base_offset == len(kept)
            eventually(lambda: wire.produce("churn", batch(b"x" * 500)).error_code == 0)
        kproxy("check", restored)
        kproxy("check", backup)  # a restored server changes nothing in it


def init(wire: Wire, name: str, pid: int = -1, epoch: int = -1) -> tuple[int, int, int]:
    """Return error code, producer id and epoch; once what was open is aborted."""
    values = {
        "transactional_id": name, "transaction_timeout": 60000, "producer_id": pid,
        "producer_epoch": epoch,
    }  # fmt: skip
    while True:
        answer = wire.call(ApiKey.INIT_PRODUCER_ID, 4, values)
        if answer.error_code != 51:
            return answer.error_code, int(answer.producer_id), answer.producer_epoch
        time.sleep(0.02)


def ids(wire: Wire) -> set[int]:
    return {wire.producer_id() for _ in range(30)}


def write(wire: Wire, pid: int, sequence: int) -> int:
    data = batch(b"%d" % sequence, producer_id=pid, epoch=0, sequence=sequence)
    return int(wire.produce("q", data).error_code)


def test_no_producer_id_and_no_epoch_is_given_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data) as server, Wire(server.host, server.port) as wire:
        early = wire.producer_id()
        assert [write(wire, early, n) for n in range(3)] == [0] * 3
        _, pid, epoch = init(wire, "t")
        idle = init(wire, "idle")
        backup = back_up(data, tmp_path / "b")
        assert [write(wire, early, n) for n in range(3, 6)] == [0] * 3
        known = ids(wire) | {early, pid, idle[1]}
        lost = [init(wire, "t") for _ in range(5)]
        assert {p for _, p, _ in lost} == {pid}
        late = wire.producer_id()
        assert write(wire, late, 0) == 0
        new = init(wire, "new")
        known |= {late, new[1]}
    for restored in (tmp_path / "r1", tmp_path / "r2"):  # the same backup once more
        restore(backup, restored)
        with served(restored) as server, Wire(server.host, server.port) as wire:
            assert write(wire, early, 6) == OUT_OF_ORDER  # three of its batches are lost
            assert write(wire, early, 3) == 0
            assert write(wire, late, 1) == 0  # a producer with an unknown id may begin
            for held in (epoch, epoch + 5):
                assert init(wire, "t", pid, held)[0] == FENCED
            assert init(wire, "idle", *idle[1:])[0] == FENCED
            given = [init(wire, name) for name in ("t", "idle", "new")]
            assert [(code, e) for code, _, e in given] == [(0, 0)] * 3
            fresh = ids(wire) | {p for _, p, _ in given}
            assert not fresh & known
            known |= fresh
            assert init(wire, "t", *given[0][1:]) == (0, given[0][1], 1)
        with served(restored) as server, Wire(server.host, server.port) as wire:  # and again
            assert not ids(wire) & known
            assert init(wire, "t")[0] == 0


def test_clients_that_outlive_a_restore(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    common = {
        "bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0, "reconnect.backoff.max.ms": 200,
        "topic.metadata.refresh.interval.ms": 500,
    }  # fmt: skip
    exact = Producer({**common, "transactional.id": "t"})
    plain = Producer({**common, "enable.idempotence": True, "message.timeout.ms": 30000})
    reader = Consumer(
        {**common, "group.id": "g", "auto.offset.reset": "error", "enable.auto.commit": False}
    )
    outcomes: list[Any] = []

    def send(count: int) -> None:
        for _ in range(count):
            plain.produce("q", b"v", on_delivery=lambda error, _: outcomes.append(error))
        assert plain.flush(40) == 0

    with served(data, port=port):
        exact.init_transactions(20)
        exact.begin_transaction()
        exact.produce("x", b"kept")
        exact.commit_transaction(20)
        exact.begin_transaction()
        exact.produce("x", b"open at the backup")
        exact.flush(20)
        send(10)
        backup = back_up(data, tmp_path / "b")
        exact.produce("x", b"lost")
        exact.flush(20)
        for _ in range(5):
            send(10)
        reader.assign([TopicPartition("q", 0, 0)])
        read = [reader.poll(20) for _ in range(60)]
        assert all(m is not None and not m.error() for m in read)
        reader.commit(asynchronous=False)
    shutil.rmtree(data)
    restore(backup, data)
    with served(data, port=port):
        with pytest.raises(KafkaException) as refused:  # half of it is lost: none of it counts
            exact.commit_transaction(30)
        assert refused.value.args[0].fatal() or refused.value.args[0].txn_requires_abort()
        again = Producer({**common, "transactional.id": "t"})
        again.init_transactions(30)
        again.begin_transaction()
        again.produce("x", b"after")
        again.commit_transaction(30)
        assert everything(common, "x") == [b"kept", b"after"]
        # A position behind the end is out of range, as with Kafka.
        found = eventually(lambda: reader.poll(5), 30)
        while found.error() and found.error().code() != KafkaError._AUTO_OFFSET_RESET:
            found = eventually(lambda: reader.poll(5), 30)
        assert found.error().code() == KafkaError._AUTO_OFFSET_RESET
        assert reader.committed([TopicPartition("q", 0)], 10)[0].offset < 0  # it was not backed up
        with pytest.raises(KafkaException) as told:  # its next batch does not follow the last one
            send(5)
        assert told.value.args[0].fatal()
        assert told.value.args[0].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        fresh = Producer({**common, "enable.idempotence": True})
        fresh.produce("q", b"v", on_delivery=lambda error, _: outcomes.append(error))
        assert fresh.flush(20) == 0
        assert outcomes[-1] is None
    reader.close()


def test_refused_backups_and_restores(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "b"
    assert "no kproxy serves on" in kproxy(
        "backup", "--data-dir", tmp_path, "--to", backup, status=1
    )
    with served(data) as server:
        with Wire(server.host, server.port) as wire:
            wire.produce("q", batch(b"v"))
        assert "another kproxy" in kproxy("check", data, status=1)
        back_up(data, backup)
        assert "is not empty" in kproxy("backup", "--data-dir", data, "--to", backup, status=1)
        assert "is not empty" in kproxy("restore", "--from", backup, "--data-dir", data, status=1)
    stopped = back_up(data, tmp_path / "of a stopped one")
    assert "no whole backup" in kproxy(
        "restore", "--from", data, "--data-dir", tmp_path / "r", status=1
    )
    (manifest := stopped / NAME).write_text(
        json.dumps(json.loads(manifest.read_text()) | {"time_ms": 1 << 60})
    )
    assert "clock" in kproxy("restore", "--from", stopped, "--data-dir", tmp_path / "r", status=1)
    hostile = tmp_path / "hostile"
    shutil.copytree(backup, hostile)
    told = json.loads((hostile / NAME).read_text())
    for outside in ("../outside", "/outside", "rows/../../outside"):
        told["files"] = {outside: 0}
        (hostile / NAME).write_text(json.dumps(told))
        refused = kproxy("restore", "--from", hostile, "--data-dir", tmp_path / "r", status=1)
        assert "names a file outside of it" in refused
    (segment,) = (stopped / "shard-0" / "log").glob("*.log")
    segment.write_bytes(segment.read_bytes()[:-1])
    assert "bytes" in kproxy("check", stopped, status=1)
    segment.unlink()
    assert "is missing" in kproxy("check", stopped, status=1)
    (data / UNFINISHED).touch()
    assert "not finished" in kproxy("check", data, status=1)
    assert "not finished" in kproxy("backup", "--data-dir", data, "--to", tmp_path / "x", status=1)
    assert "not finished" in kproxy(
        "serve", "--data-dir", data, "--listen", "127.0.0.1:0", status=1
    )
    restore(backup, data)  # it is begun anew
    kproxy("check", data)
