"""`kproxy consume`: records of queues, as text or as JSON lines."""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any, BinaryIO

import click

from kproxy.common.errors import CannotStart, Code, KafkaError
from kproxy.protocol.name_search import NameSearch
from kproxy.tools.changes import reason
from kproxy.tools.client import Address, Client, Refused
from kproxy.tools.options import asked, librdkafka, server_option
from kproxy.tools.records.offsets import Part, Place, Span, parsed, spans
from kproxy.tools.records.text import Record, as_json, formatted
from kproxy.tools.records.text import parsed as parsed_format

_PARTITIONS_MAX = 100_000
_AT_ONCE = 1000
_WAIT_S = 0.2
_BY_ITSELF = "kproxy-consume"
"""A group's name that the client library asks for. Nobody joins it."""
_AUTO_RESET = {"start": "earliest", "end": "latest"}


@click.command(name="consume")
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--offset", default=None, metavar="PLACE",
              help="start, end, N, -N (the last N), @TIME, START:END [default: start; of a group:"
              " where it is]")  # fmt: skip
@click.option("--num", type=click.IntRange(1), metavar="N", help="end after so many records")
@click.option("--group", help="read as a member of this group, and commit what is printed")
@click.option("--format", "text", default="%v\\n", show_default=True,
              help="the format of a record: %k %v %h %t %p %o %d, \\n, \\t")  # fmt: skip
@click.option("--json", "json_lines", is_flag=True, help="JSON lines, which produce can read")
@click.option("--regex", is_flag=True, help="names are expressions that match whole names")
@click.option("--partition", "only", multiple=True, type=click.IntRange(0), metavar="N",
              help="only this one; may be given again")  # fmt: skip
@click.option("--follow/--no-follow", help="wait for more records at the end")
@click.option("--uncommitted", is_flag=True, help="also records of open and aborted transactions")
@click.option("--raw", is_flag=True, help="escape nothing, also on a terminal")
@server_option
def consume_command(
    names: tuple[str, ...], offset: str | None, num: int | None, group: str | None, text: str,
    json_lines: bool, regex: bool, only: tuple[int, ...], follow: bool, uncommitted: bool,
    raw: bool, bootstrap_server: Address,
) -> None:  # fmt: skip
    """Print the records of queues, up to the end; committed ones alone.

    Control characters are printed escaped on a terminal. Output to a file or a pipe is as it is.
    """
    stdout = sys.stdout.buffer
    escape = not raw and stdout.isatty()
    line = as_json if json_lines else formatted(parsed_format(text), escape=escape)
    first, end = parsed(offset or "start")
    if group is not None and (only or end is not None or offset not in (None, *_AUTO_RESET)):
        raise click.UsageError(
            "a group has its own offsets: --group goes with --offset start or end"
        )
    look = partial(_looked_up, names=names, regex=regex, only=only, first=first, end=end)
    found: dict[Part, Span] = asked(bootstrap_server, look)
    reading = _Reading(bootstrap_server, found, group, _AUTO_RESET.get(offset or "start"), follow,
                       uncommitted)  # fmt: skip
    try:
        with _interrupts() as interrupted:
            _print(reading, stdout, line, num, interrupted)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's end
    finally:
        reading.close()


def _looked_up(
    client: Client, names: tuple[str, ...], regex: bool, only: tuple[int, ...], first: Place,
    end: Place | None,
) -> dict[Part, Span]:  # fmt: skip
    """Return what there is to read. Raises Refused where a name has no queue."""
    wanted = _matching(client, names) if regex else list(dict.fromkeys(names))
    leaders: dict[Part, int] = {}
    for topic in client.metadata(wanted):
        if topic.error_code:
            raise Refused(f"{topic.name}: {reason(int(topic.error_code), None)}")
        for part in topic.partitions:
            if not only or part.partition_index in only:
                leaders[topic.name, part.partition_index] = part.leader_id
    if not leaders:
        raise Refused("there is no such partition; `kproxy describe` shows how many there are")
    if len(leaders) > _PARTITIONS_MAX:
        raise Refused(
            f"{len(leaders)} partitions are too many for one reader, {_PARTITIONS_MAX} is the most:"
            " read an entrance or a filter (kproxy.route.to, kproxy.route.from)"
        )
    found = spans(client, leaders, first, end)
    if away := sorted(leaders.keys() - found.keys()):
        name, index = away[0]
        raise Refused(f"{name} partition {index} is served by nobody now: try again")
    return found


def _matching(client: Client, names: tuple[str, ...]) -> list[str]:
    for name in names:
        try:
            NameSearch(matching=name).matcher()
        except KafkaError as error:
            raise Refused(f"--regex {name}: {error.message}") from None
    search = NameSearch(matching="|".join(f"(?:{name})" for name in names))
    found = {topic.name: None for page in client.pages(search) for topic in page}
    if not found:
        raise Refused(f"no queue is matched by {' '.join(names)}")
    return list(found)


@contextmanager
def _interrupts() -> Iterator[Event]:
    """Note SIGINT and SIGTERM: an exception may be raised where a library swallows it."""
    interrupted = Event()
    before = {
        number: signal.signal(number, lambda *_: interrupted.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(
    reading: "_Reading", out: BinaryIO, line: Any, num: int | None, interrupted: Event
) -> None:
    """Write records until there are no more, or `num` of them. Raises BrokenPipeError."""
    left = num
    gone = _watched(out)
    for messages in reading.batches():
        some = messages if left is None else messages[:left]
        out.write(b"".join([line(_record(message)) for message in some]))
        out.flush()
        reading.note(some)
        if left is not None:
            left -= len(some)
            if not left:
                return
        if gone():
            raise BrokenPipeError
        if interrupted.is_set():
            return


def _watched(out: BinaryIO) -> Callable[[], bool]:
    """Return what tells whether nobody reads a pipe any more, before something is written."""
    try:
        number = out.fileno()
    except OSError:
        return lambda: False
    gone = select.poll()
    gone.register(number, select.POLLERR)
    return lambda: bool(gone.poll(0))


def _record(message: Any) -> Record:
    return Record(
        message.key(), message.value(), message.headers() or (), message.timestamp()[1],
        message.partition(), message.offset(), message.topic(),
    )  # fmt: skip


class _Reading:
    """A consumer that reads some partitions, or as a member of a group."""

    def __init__(
        self, address: Address, found: dict[Part, Span], group: str | None,
        reset: str | None, follow: bool, uncommitted: bool,
    ) -> None:  # fmt: skip
        from confluent_kafka import Consumer, KafkaError, TopicPartition  # --help needs none

        self._eof, self._group, self._follow = KafkaError._PARTITION_EOF, group, follow
        self._found = found
        self._consumer = Consumer(
            librdkafka(address, {
                "group.id": group or _BY_ITSELF,
                "auto.offset.reset": reset or "earliest",
                "enable.auto.commit": group is not None,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted" if uncommitted else "read_committed",
                "queued.max.messages.kbytes": 65_536,
                "fetch.queue.backoff.ms": 10,  # a second of waiting else, whenever much is there
                "topic.metadata.refresh.interval.ms": 10_000,
            })
        )  # fmt: skip
        self._open: set[Part] | None = None
        self._ours: set[Part] = set()
        """The partitions of a group that this member may print and commit."""
        if group is not None:
            queues = sorted({name for name, _ in found})
            self._consumer.subscribe(
                queues, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            )
            return
        self._open = {part for part, span in found.items() if self._goes_on(part, span.first)}
        places = [TopicPartition(*part, found[part].first) for part in sorted(self._open)]
        self._consumer.assign(places)

    def _assigned(self, consumer: Any, parts: list[Any]) -> None:
        """Begin with what the group gives; who follows waits for more where that is nothing."""
        self._ours = {(part.topic, part.partition) for part in parts}
        self._open = None if self._follow else set(self._ours)

    def _revoked(self, consumer: Any, parts: list[Any]) -> None:
        self._ours.clear()

    def _goes_on(self, part: Part, offset: int) -> bool:
        """Whether a partition has more to read from an offset on."""
        span = self._found.get(part)
        if span is None or self._group is not None:
            return True
        if span.end is not None and offset >= span.end:
            return False
        return self._follow or offset < span.now

    def batches(self) -> Iterator[list[Any]]:
        """Yield messages, also none now and then, until the end. Raises CannotStart."""
        while self._open is None or self._open:
            first = self._consumer.poll(_WAIT_S)
            some = [] if first is None else [first, *self._consumer.consume(_AT_ONCE, 0)]
            yield [one for one in some if self._is_ours(one) and self._is_wanted(one)]

    def _is_ours(self, message: Any) -> bool:
        """Whether the group has left a partition here: what is not is printed by its next owner."""
        part = message.topic(), message.partition()
        return self._group is None or message.error() is not None or part in self._ours

    def _is_wanted(self, message: Any) -> bool:
        error, part = message.error(), (message.topic(), message.partition())
        if error is None:
            span = self._found.get(part)
            if span is not None and span.end is not None and message.offset() >= span.end:
                self._done(part)
                return False
            if not self._goes_on(part, message.offset() + 1):
                self._done(part)
            return True
        if error.code() == self._eof:
            if not self._follow:
                self._done(part)
        elif error.fatal() or self._is_refusal(error):
            raise CannotStart(f"{part[0] or self._group}: {reason(error.code(), error.str())}")
        return False

    def _is_refusal(self, error: Any) -> bool:
        """Whether an error stays; a group that nobody has named may be forbidden."""
        if self._group is None and error.code() == Code.GROUP_AUTHORIZATION_FAILED:
            return False
        return error.code() > 0 and not error.retriable()

    def _done(self, part: Part) -> None:
        if self._open is not None:
            self._open.discard(part)

    def note(self, messages: list[Any]) -> None:
        """Have what was printed committed."""
        if self._group is not None:
            last = {(one.topic(), one.partition()): one for one in messages}
            for message in last.values():
                self._consumer.store_offsets(message)

    def close(self) -> None:
        """Leave the group, and commit."""
        self._consumer.close()
