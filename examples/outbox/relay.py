"""Events from an outbox table of PostgreSQL into queues, at least once or exactly once.

The table is in schema.sql; README.md says how to use both, and why no event is lost. A relay that
meets an error ends with one line on standard error and exit code 1: whoever runs it starts it
again, and it goes on from the last position.
"""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

try:
    import psycopg
    from psycopg.rows import class_row
except ImportError:
    raise SystemExit("relay.py needs psycopg: pip install 'psycopg[binary]'") from None

WAIT_S = 60  # for kproxy's answers to a batch
CONNECT_S = 10
STAND_BY_S = 1.0  # between two tries to become the relay that forwards

# A row is read when every transaction with a lower xid has ended, so that nothing can appear before
# the position any more. The condition and the rows are of one snapshot.
UNREAD = """
    SELECT outbox.xid::text::bigint AS xid, id, queue, key, payload, headers,
           (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
    FROM outbox
    WHERE (xid, id) > (%(xid)s::text::xid8, %(id)s)
      AND xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY outbox.xid, outbox.id
    LIMIT %(count)s
"""
SAVE = """
    INSERT INTO outbox_position (name, xid, id) VALUES (%s, %s::text::xid8, %s)
    ON CONFLICT (name) DO UPDATE SET xid = excluded.xid, id = excluded.id
"""
SAVED = "SELECT xid::text::bigint AS xid, id FROM outbox_position WHERE name = %s"
NEXT_XID = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('outbox ' || %s, 0))"


class Position(NamedTuple):
    """Every event up to here, in the order of (xid, id), is in its queue."""

    xid: int
    id: int


START = Position(0, 0)


class RelayError(click.ClickException):
    """The line that a relay ends with."""


class Event(NamedTuple):
    """A row of the table."""

    xid: int
    id: int
    queue: str
    key: str | None
    payload: bytes | None
    headers: dict[str, Any]
    created_ms: int


class AtLeastOnce:
    """An idempotent producer. The position is in PostgreSQL alone, written behind the events."""

    mode = "at least once"

    def __init__(self, address: str, name: str, **settings: Any) -> None:
        self.address, self.name = address, name
        self._refused: list[str] = []
        # No event has a time limit of its own: none is given up while later ones are written.
        limits: dict[str, Any] = settings or {"message.timeout.ms": 0}
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0, **limits}
        )

    def position(self) -> Position:
        """Where the queues say that this relay is."""
        self._producer.list_topics(timeout=CONNECT_S)
        return START

    def forward(self, events: Sequence[Event]) -> None:
        """Return once all events are in their queues."""
        self._produce(events)
        unanswered = self._producer.flush(WAIT_S)
        if self._refused or unanswered:
            raise RelayError((*self._refused, f"{self.address} does not answer")[0])

    def _produce(self, events: Sequence[Event]) -> None:
        for event in events:
            what = f"event {event.id} for queue {event.queue}"

            def answered(error: KafkaError | None, _: Message, what: str = what) -> None:
                if error is not None:
                    self._refused.append(f"{what}: {error.str()}")

            headers: dict[str, str | bytes | None] = {"outbox-id": str(event.id)}
            headers |= {name: str(value) for name, value in event.headers.items()}
            try:
                self._producer.produce(
                    event.queue, event.payload, event.key, timestamp=event.created_ms,
                    headers=headers, on_delivery=answered,
                )  # fmt: skip
            except KafkaException as error:
                raise RelayError(f"{what}: {error.args[0].str()}") from error
            self._producer.poll(0)


class ExactlyOnce(AtLeastOnce):
    """One Kafka transaction has the events of a batch and the position behind them.

    The position is the last record of a compacted queue, and not an offset of a group: those expire
    when no event comes for a week (`offsets.retention.minutes`).
    """

    mode = "exactly once"

    def __init__(self, address: str, name: str) -> None:
        super().__init__(address, name, **{"transactional.id": name})
        self._queue = f"{name}-position"

    def position(self) -> Position:
        """End the transaction of the relay before and fence it; only then look how far it was."""
        super().position()
        self._producer.init_transactions(WAIT_S)
        self._create_queue()
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": self.name, "enable.auto.commit": False,
             "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0,
             "auto.offset.reset": "earliest"}
        )  # fmt: skip
        consumer.assign([TopicPartition(self._queue, 0, OFFSET_BEGINNING)])
        position = START
        try:
            while (message := consumer.poll(WAIT_S)) is not None:
                error = message.error()
                if error is None:
                    xid, _, row_id = (message.value() or b"").decode().partition(":")
                    position = Position(int(xid), int(row_id))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return position
                elif not error.retriable():
                    raise KafkaException(error)
            raise RelayError(f"{self.address} does not answer")
        finally:
            consumer.close()

    def _create_queue(self) -> None:
        config = {"cleanup.policy": "compact"}
        queue = NewTopic(self._queue, num_partitions=1, replication_factor=-1, config=config)
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            client.create_topics([queue])[self._queue].result(WAIT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def forward(self, events: Sequence[Event]) -> None:
        try:
            self.begin(events)
            self.commit(Position(events[-1].xid, events[-1].id))
        except KafkaException as error:
            if error.args[0].code() == KafkaError._FENCED:
                raise RelayError(f"another relay with --name {self.name} took over") from error
            raise RelayError((*self._refused, error.args[0].str())[0]) from error

    def begin(self, events: Sequence[Event]) -> None:
        self._producer.begin_transaction()
        self._produce(events)

    def commit(self, position: Position) -> None:
        self._producer.produce(self._queue, f"{position.xid}:{position.id}", self.name)
        self._producer.commit_transaction(WAIT_S)


def relay(
    database: psycopg.Connection[Any], target: AtLeastOnce, stop: threading.Event,
    *, batch: int, poll_s: float, once: bool,
) -> int:  # fmt: skip
    """Forward until told to stop, or with `once` until nothing is left; how many events."""
    name, count = target.name, 0
    with database.cursor(row_factory=class_row(Position)) as cursor:
        saved = cursor.execute(SAVED, [name]).fetchone() or START
    # Each is a place up to which all is forwarded: who changes the mode goes on from the later one.
    position = max(saved, target.position())
    (next_xid,) = database.execute(NEXT_XID).fetchone() or (0,)
    if position.xid >= next_xid:
        raise RelayError(
            f"{name} has forwarded transaction {position.xid}, this database is at {next_xid}:"
            " it was restored, or is another one. Give this relay another --name"
        )
    click.echo(f"{name} forwards {target.mode}, from {position.xid}:{position.id}")
    with database.cursor(row_factory=class_row(Event)) as cursor:
        while not stop.is_set():
            asked = {"xid": str(position.xid), "id": position.id, "count": batch}
            events = cursor.execute(UNREAD, asked).fetchall()
            if events:
                target.forward(events)
                position = Position(events[-1].xid, events[-1].id)
                database.execute(SAVE, [name, str(position.xid), position.id])
                count += len(events)
            elif once:
                break
            else:
                stop.wait(poll_s)
    return count


def stand_by(database: psycopg.Connection[Any], name: str, stop: threading.Event) -> None:
    """Wait for the lock, which PostgreSQL frees when the session of who has it ends.

    By trying: a statement that waits holds a snapshot, and vacuum would wait with it.
    """
    said = False
    while not stop.is_set() and database.execute(TRY_LOCK, [name]).fetchone() != (True,):
        if not said:
            click.echo(f"{name} stands by: another relay forwards")
        said = True
        stop.wait(STAND_BY_S)


@contextmanager
def one_line_errors(address: str) -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise RelayError(f"PostgreSQL: {error.diag.message_primary}: see schema.sql") from error
    except psycopg.Error as error:
        raise RelayError(f"PostgreSQL: {' '.join(str(error).split())}") from error
    except KafkaException as error:
        raise RelayError(f"{address}: {error.args[0].str()}") from error


@click.command()
@click.option("--bootstrap-server", "address", default="127.0.0.1:9092", show_default=True)
@click.option("--database", default="", help="A connection string; libpq's PG* variables fill in.")
@click.option("--exactly-once", "exact", is_flag=True, help="In Kafka transactions.")
@click.option("--name", default="outbox", show_default=True, help="Of the lock, the position and"
              " the transactional id: one for each database.")  # fmt: skip
@click.option("--batch", default=500, show_default=True, type=click.IntRange(1, 1000),
              help="Most events in memory, and in a transaction.")  # fmt: skip
@click.option("--poll-ms", default=100, show_default=True, type=click.IntRange(1),
              help="Between looks at an outbox that has nothing new.")  # fmt: skip
@click.option("--once", is_flag=True, help="End when nothing is left.")
def main(
    address: str, database: str, exact: bool, name: str, batch: int, poll_ms: int, once: bool
) -> None:
    """Forward the events of an outbox table to queues, in order, until SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    utf8: dict[str, Any] = {"client_encoding": "UTF8", "autocommit": True}
    with one_line_errors(address), psycopg.connect(database, **utf8) as connection:
        stand_by(connection, name, stop)
        count = 0
        if not stop.is_set():
            target = (ExactlyOnce if exact else AtLeastOnce)(address, name)
            count = relay(connection, target, stop, batch=batch, poll_s=poll_ms / 1000, once=once)
        click.echo(f"{name} ends, events forwarded: {count}")


if __name__ == "__main__":
    main()
