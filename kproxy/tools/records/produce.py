"""`kproxy produce`: lines, JSON lines and files become records of a queue."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

from kproxy.common.errors import CannotStart, Code
from kproxy.tools.changes import pairs, reason
from kproxy.tools.client import Address, Client, Refused
from kproxy.tools.options import as_json_option, asked, librdkafka, server_option
from kproxy.tools.output import Refusals, bar, complain, print_json
from kproxy.tools.records.input import BadRecord, reader
from kproxy.tools.records.text import Record
from kproxy.tools.records.times import duration, moment

_DELAY = "kproxy.delay-ms"
_DELIVERY_S = 60
_POLL_EVERY = 256
_BATCH_SETTING, _BATCH_BYTES = "max.message.bytes", 1_000_000
_CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@click.command(name="produce")
@click.argument("queue")
@click.option("--key", help="key of each record")
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE",
              help="a header of each record")  # fmt: skip
@click.option("--format", "text", default="%v\\n", show_default=True,
              help="the format of a record: %k %v %h %p %d; json; raw: a whole file")  # fmt: skip
@click.option("--file", "files", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
              help="read it in the place of standard input; may be given again")  # fmt: skip
@click.option("--compression", type=click.Choice(_CODECS), default="none", show_default=True)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option("--partition", type=click.IntRange(0), metavar="N", help="[default: by the key]")
@click.option("--timestamp", callback=moment, metavar="TIME",
              help="the time of each record, if not now")  # fmt: skip
@click.option("--delay", callback=duration, metavar="TIME",
              help="how long a record waits: in queues with kproxy.delay=header")  # fmt: skip
@click.option("--tombstone", is_flag=True, help="an empty value is none: it deletes its key")
@as_json_option
@server_option
def produce_command(
    queue: str, key: str | None, headers: tuple[str, ...], text: str, files: tuple[Path, ...],
    compression: str, acks: str, partition: int | None, timestamp: int | None, delay: int | None,
    tombstone: bool, as_json: bool, bootstrap_server: Address,
) -> None:  # fmt: skip
    """Write the lines of standard input, or files, into a queue.

    Exit status 1 if any record was refused, with a line for each, the first twenty.
    """
    read, parse = reader(text)
    added = [(name, value.encode()) for name, value in pairs(headers, "--header").items()]
    if delay is not None:
        added.append((_DELAY, str(delay).encode()))
    look = partial(_batch_bytes, queue=queue, delayed=delay is not None)
    settings = {
        "acks": acks, "compression.type": compression, "batch.size": asked(bootstrap_server, look),
    }  # fmt: skip
    fixed = Record(
        None if key is None else key.encode(), None, added,
        -1 if timestamp is None else timestamp, -1 if partition is None else partition,
    )  # fmt: skip
    sender = _Sender(bootstrap_server, queue, settings)
    try:
        with _bar(files) as advance:
            for name, stream in _inputs(files):
                for number, piece in enumerate(read(stream), 1):
                    where = f"{name} {number}" if text != "raw" else name
                    try:
                        sender.send(_filled(parse(piece), fixed, tombstone), where)
                    except BadRecord as error:
                        sender.refusals.add(f"{where}: {error}")
                    advance(stream)
        sender.flush()
    except KeyboardInterrupt:
        sender.give_up()
    if as_json:
        refused = sender.refusals.count
        print_json([{"queue": queue, "produced": sender.produced, "refused": refused}])
    else:
        click.echo(f"produced {sender.produced}")
    sender.refusals.end()


def _batch_bytes(client: Client, queue: str, delayed: bool) -> int:
    """Return the largest batch of a queue: one record too large then makes no other be refused.

    Raises Refused where records cannot go there.
    """
    (topic,) = client.metadata([queue])
    code = int(topic.error_code)
    missing = code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE)
    if code and not missing:
        known = "names have ASCII letters, digits, . _ -"
        said = known if code == Code.INVALID_TOPIC_EXCEPTION else ""
        raise Refused(f"{queue}: {reason(code, said)}")
    found = {} if missing else client.settings(queue, ("kproxy.delay", _BATCH_SETTING))
    create = f"kproxy create {queue} --set kproxy.delay=header"
    if delayed and missing:
        raise Refused(f"there is no queue {queue} that delays records: {create}")
    if delayed and found.get("kproxy.delay", "header") != "header":
        raise Refused(f"{queue} does not look at --delay: {create.replace('create', 'alter')}")
    return max(1, min(_BATCH_BYTES, int(found.get(_BATCH_SETTING) or _BATCH_BYTES)))


def _inputs(files: tuple[Path, ...]) -> Iterator[tuple[str, BinaryIO]]:
    """Yield each input and how its pieces are called. Raises CannotStart."""
    if not files:
        yield "line", sys.stdin.buffer
    for path in files:
        try:
            with path.open("rb") as stream:
                yield f"{path} line", stream
        except OSError as error:
            raise CannotStart(f"cannot read {path}: {error.strerror}") from None


@contextmanager
def _bar(files: tuple[Path, ...]) -> Iterator[Any]:
    """Show how much of the files was read, on a terminal."""
    if not files or not sys.stderr.isatty():
        yield lambda stream: None
        return
    total = sum(path.stat().st_size for path in files if path.exists())
    with bar("producing", total, of_bytes=True) as told:
        places: dict[BinaryIO, int] = {}

        def advance(stream: BinaryIO) -> None:
            if not stream.seekable():  # a pipe has no place
                return
            place = stream.tell()
            if place != places.get(stream):
                places[stream] = place
                told(completed=sum(places.values()))

        yield advance


class _Sender:
    """A producer, and how many of its records were taken and refused."""

    def __init__(self, address: Address, queue: str, settings: dict[str, Any]) -> None:
        from confluent_kafka import KafkaException, Producer  # --help needs none

        self._error = KafkaException
        self._producer = Producer(
            librdkafka(address, {
                "enable.idempotence": settings["acks"] == "all",
                "partitioner": "murmur2_random",  # as Java's producers
                "linger.ms": 10,
                "queue.buffering.max.kbytes": 131_072,
                "message.max.bytes": 100 << 20,  # the server says what is too large
                "message.timeout.ms": _DELIVERY_S * 1000,
                "topic.metadata.propagation.max.ms": 10_000,
                **settings,
            })
        )  # fmt: skip
        self._queue = queue
        self.produced = self._sent = 0
        self.refusals = Refusals()
        self._again: list[tuple[Record, str]] = []
        self._sends_again = False

    def send(self, record: Record, where: str) -> None:
        """Send a record; its refusal is reported by where it stood."""
        optional: dict[str, Any] = {}
        if record.timestamp >= 0:
            optional["timestamp"] = record.timestamp
        if record.partition >= 0:
            optional["partition"] = record.partition
        answered = partial(self._answered, where)
        while True:
            try:
                self._producer.produce(
                    self._queue, record.value, record.key, headers=list(record.headers),
                    on_delivery=answered, **optional,
                )  # fmt: skip
            except BufferError:
                self._producer.poll(0.2)
                continue
            except self._error as error:
                self._answered(where, error.args[0], None)
            break
        self._sent += 1
        if not self._sent % _POLL_EVERY:
            self._producer.poll(0)
            self._send_again()

    def _send_again(self) -> None:
        """Send what was refused for another record of its batch."""
        if self._sends_again:
            return
        self._sends_again = True
        again, self._again = self._again, []
        for record, where in again:
            self.send(record, where)
        self._sends_again = False

    def _answered(self, where: str, error: Any, message: Any) -> None:
        if error is None:
            self.produced += 1
            return
        if error.name() == "_INVALID_DIFFERENT_RECORD":  # another one of its batch is to blame
            self._again.append((_given(message), where))
            return
        self.refusals.add(f"{where}: {_said(error)}")
        if error.fatal():
            raise CannotStart(f"{self._queue}: nothing more can be sent: {error.str()}")

    def flush(self) -> None:
        """Wait until every record is answered."""
        while self._producer.flush(0.5) or self._again:
            self._send_again()

    def give_up(self) -> None:
        """Report what was sent and is unanswered, after SIGINT."""
        self._producer.flush(1)
        if left := len(self._producer) + len(self._again):
            self._producer.purge(blocking=False)
            complain(f"stopped: {left} records were not acknowledged")
            self.refusals.count += left


def _filled(record: Record, fixed: Record, tombstone: bool) -> Record:
    """Return a record with what options say of all."""
    return Record(
        record.key if record.key is not None else fixed.key,
        None if tombstone and not record.value else record.value,
        [*record.headers, *fixed.headers],
        record.timestamp if record.timestamp >= 0 else fixed.timestamp,
        record.partition if record.partition >= 0 else fixed.partition,
    )


def _given(message: Any) -> Record:
    """Return a record as it was sent."""
    return Record(message.key(), message.value(), message.headers() or (), message.timestamp()[1],
                  message.partition())  # fmt: skip


def _said(error: Any) -> str:
    if error.code() > 0:
        return reason(error.code(), error.str().removeprefix("Broker: "))
    if error.name() == "_MSG_TIMED_OUT":
        return f"nobody took it within {_DELIVERY_S} s; `kproxy health` tells whether it serves"
    if error.name() in ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"):
        return "there is no such queue, and none is made: `kproxy create` makes it"
    if error.name() == "_UNKNOWN_PARTITION":
        return "there is no such partition; `kproxy describe` shows how many there are"
    return f"{error.name().strip('_')}: {error.str()}"
