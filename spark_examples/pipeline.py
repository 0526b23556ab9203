"""The shared parts of the jobs: options, Spark with its Kafka connector, queues, progress, files.

A queue is a topic to Spark: its own Kafka source reads queues, its own Kafka sink writes them.
"""

import functools
import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import click
import secured
from py4j.protocol import Py4JError
from pyspark import __version__ as SPARK
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery, StreamingQueryListener

CONNECTOR, DELTA = "spark-sql-kafka-0-10", "delta-spark"
JARS = Path(__file__).resolve().parent.parent / ".tools" / f"spark-jars-{SPARK}"
TIMESTAMP = "timestamp"
"""The header that carries a record's time in ms since 1970: Spark's sink cannot set the record's
own, which is when it was written."""
_YEARS = -62_135_596_800_000, 253_402_300_799_999  # from 0001 to 9999, in ms

# Java's producer copies its maps at each topic that is new to it: the first 28,000 took one of them
# ten minutes (measured), 50,000 in thousands with a producer each little more than one.
_QUEUES_A_PRODUCER = 1000
_PRODUCERS_AT_ONCE = 8
_LOOK_S = 0.2  # at a query that may have ended
# Small requests to thousands of queues are what costs: wait a little, and send what has gathered.
_SINK = {"kafka.linger.ms": "20", "kafka.batch.size": "65536", "kafka.compression.type": "lz4"}


def fail(message: str) -> NoReturn:
    """End the job with one line and exit status 1."""
    raise click.ClickException(message)


def counted(number: int, what: str) -> str:
    """Return text such as: 1 row, 2 rows."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


# -- the command line


def _pairs(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    """NAME=VALUE, given many times, as a dict."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        found[name] = value
    return found


pattern = click.option(
    "--subscribe-pattern", "pattern", default="user-.*", help="which queues, a Java regex."
)
entrance = click.option(
    "--entrance", metavar="QUEUE", help="read this one; rows are of the queues it passes them to."
)
checkpoint = click.option(
    "--checkpoint", required=True, metavar="DIR", help="remembers what was taken."
)
every = click.option(
    "--every", metavar="TIME", help='go on for ever, a micro-batch every "10 seconds".'
)


def job(command: Callable[..., None]) -> click.Command:
    """Return a click command with the options that all jobs have, and one line for each failure."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop is like Ctrl-C
        if (path := options.pop("command_config")) is not None:
            options["options"] = secured.options_of(path) | options["options"]
        try:
            command(**options)
        except (PySparkException, Py4JError) as error:
            fail(one_line(error))

    for option in (
        click.option("--packages", metavar="COORDINATES", help="have Spark fetch the connector."),
        click.option(
            "--jars", default=JARS, type=click.Path(path_type=Path), show_default="made by make",
            help="directory of the Kafka connector's jars.",
        ),
        click.option(
            "--conf", multiple=True, metavar="NAME=VALUE", callback=_pairs,
            help="a setting of Spark.",
        ),
        click.option(
            "--option", "options", multiple=True, metavar="NAME=VALUE", callback=_pairs,
            help="an option of Spark's Kafka source; kafka.… reaches the sink as well.",
        ),
        click.option(
            "--command-config", type=click.Path(path_type=Path), metavar="FILE",
            help="client settings by which to log in, in librdkafka's names.",
        ),
        click.option(
            "--master", default="local[8]",
            help="the master that Spark runs on; its tasks mostly wait for answers.",
        ),
        click.option(
            "--bootstrap-server", "server", default="127.0.0.1:9092", help="address of kproxy.",
        ),
    ):  # fmt: skip
        run = option(run)
    return click.command(context_settings={"show_default": True})(run)


def one_line(error: Exception) -> str:
    """Return the innermost cause, of the many lines that Spark has for an error."""
    text = str(error)
    name = r"(?:[\w$]+\.)+([\w$]+(?:Error|Exception))(?:: (.+))?$"
    for said in (rf"^Caused by: {name}", rf"^{name}", rf"^: {name}"):
        if found := re.findall(said, text, re.M):
            kind, reason = found[-1]
            return re.sub(r" SQLSTATE: \w+$", "", reason) or kind
    return text.strip().split("\n")[0] or type(error).__name__


# -- Spark


def session(
    name: str, options: dict[str, Any], tables: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Return Spark with the Kafka connector, from the options of `job`.

    `tables`: the settings by which it has tables. Under spark-submit the connector is as given
    there. Raises click.ClickException: no Java, no connector, no server.
    """
    check_server(options["server"])
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        for key, value in _local(options, (CONNECTOR, DELTA) if tables else (CONNECTOR,)).items():
            builder = builder.config(key, value)
    for key, value in {**tables, **options["conf"]}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        fail(f"Spark did not start: {one_line(error)}")


def _local(options: dict[str, Any], needed: tuple[str, ...]) -> dict[str, str]:
    if not shutil.which("java") and "JAVA_HOME" not in os.environ:
        fail("Spark needs Java 17 or later: install it, or set JAVA_HOME")
    log4j = Path(__file__).with_name("log4j2.properties")
    settings = {
        "spark.master": options["master"],
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
    }
    if options["master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if options["packages"]:
        return settings | {"spark.jars.packages": options["packages"]}
    jars = sorted(options["jars"].glob("*.jar"))
    for name in needed:
        if not any(name in jar.name for jar in jars):
            fail(
                f"no {name} for Spark {SPARK} in {options['jars']}:"
                f" `make spark SPARK={SPARK}` fetches what there is, or give --packages"
            )
    return settings | {"spark.jars": ",".join(map(str, jars))}


def check_server(addresses: str) -> None:
    """Ask the server before Spark does, which waits minutes for an absent one.

    Raises ClickException.
    """
    reasons = []
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            fail(f"{address!r} is not HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:
            reasons.append(f"{address} ({error.strerror or error})")
    fail(f"no server at {', '.join(reasons)}: is kproxy running there? `make run` starts one")


# -- queues


def source(reader: Any, server: str, options: dict[str, str]) -> DataFrame:
    """Return queues as rows of Spark's Kafka source, with headers.

    `reader`: spark.read or readStream.
    """
    reader = reader.format("kafka").option("kafka.bootstrap.servers", server)
    frame: DataFrame = reader.option("includeHeaders", "true").options(**options).load()
    return frame


def whole(pattern: str) -> str:
    """Return a pattern for whole names: Spark finds one anywhere in a topic's name."""
    return f"^(?:{pattern})$"


def event_time() -> Column:
    """Return a record's time: the header's, else when it was written.
    A header that is no time, or of a year beyond four digits, counts as absent.
    """
    said = F.filter("headers", lambda header: header["key"] == TIMESTAMP)
    text = F.try_element_at(said, F.lit(1))["value"].cast("string")
    ms = F.when(text.rlike(r"^-?\d{1,15}$"), text.cast("long"))
    return F.coalesce(F.when(ms.between(*_YEARS), F.timestamp_millis(ms)), F.col("timestamp"))


def header(name: str, value: Column) -> Column:
    """Return one element of the headers column; its value is null where the value is."""
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def with_header(name: str, value: Column) -> Column:
    """Return the headers column with this header, in the place of those of that name."""
    others = F.filter(F.coalesce("headers", F.array()), lambda header: header["key"] != name)
    return F.concat(others, F.array(header(name, value)))


def of_clients(options: dict[str, str]) -> dict[str, str]:
    """Return the source's options that its Kafka client gets, and the sink's as well."""
    return {name: value for name, value in options.items() if name.startswith("kafka.")}


def write(frame: DataFrame, server: str, options: dict[str, str]) -> int:
    """Append rows (topic, key, value, headers) to queues with Spark's Kafka sink; how many queues.

    Rows of a queue that are in one partition of `frame` keep their order.
    """
    frame = frame.persist()
    queues = frame.select("topic").distinct().count()
    slices = -(-queues // _QUEUES_A_PRODUCER)
    columns = [name for name in frame.columns if name in ("topic", "key", "value", "headers")]

    def write_slice(number: int) -> None:
        part = frame if slices == 1 else frame.where(F.pmod(F.hash("topic"), slices) == number)
        writer = part.select(columns).write.format("kafka").options(**_SINK | of_clients(options))
        writer.option("kafka.bootstrap.servers", server).option(
            "kafka.client.id", f"slice-{number}"
        ).save()

    with ThreadPoolExecutor(_PRODUCERS_AT_ONCE) as pool:
        list(pool.map(write_slice, range(slices)))
    frame.unpersist()
    return queues


# -- streams


class Progress(StreamingQueryListener):
    """One line for each micro-batch."""

    def __init__(self, queues: dict[int, int]) -> None:
        """Take `queues`: how many a batch wrote to, where that is not what it read from."""
        self._queues = queues
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        batch_id, rows = progress["batchId"], progress["numInputRows"]
        if rows:
            line = f"batch {batch_id}: {counted(rows, 'row')}"
            changed, lag = queues_of(progress["sources"][0])
            changed = self._queues.pop(batch_id, changed)
            line += "" if changed is None else f", {counted(changed, 'queue')}"
            print(line + ("" if lag is None else f", lag {lag:,}"), flush=True)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.ended.set()


def queues_of(progress: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return (topics that a batch read from, records it left), or None of a source that is not
    Kafka's.
    """
    if not progress["description"].startswith("Kafka"):
        return None, None
    start, end, latest = (progress[f"{name}Offset"] or {} for name in ("start", "end", "latest"))
    changed = sum(parts != start.get(topic) and any(parts.values()) for topic, parts in end.items())
    lag = 0
    for topic, parts in latest.items():
        read = end.get(topic, {})
        lag += sum(max(0, offset - read.get(index, 0)) for index, offset in parts.items())
    return changed, lag


@contextmanager
def _stop_asked() -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM; the second time is an interrupt as ever.

    An interrupt in the middle of a call to Java closes the connection, sometimes that of the next
    call.
    """
    asked = threading.Event()
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: object) -> None:
        asked.set()
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, ask)
    try:
        yield asked
    finally:
        restore()


def _wait(query: StreamingQuery, seconds: float) -> None:
    """Wait until it ends, so many seconds have passed, or a stop is asked for.

    Raises the error that ended it.
    """
    end = time.monotonic() + seconds
    with _stop_asked() as asked:
        while query.isActive and not asked.wait(_LOOK_S) and time.monotonic() < end:
            pass
    if asked.is_set():
        print("stopped; the same command goes on from here", file=sys.stderr)
    elif not query.isActive:
        query.awaitTermination()


def run(
    frame: DataFrame,
    to: Callable[[DataFrame, int], int | None] | DataStreamWriter,
    *,
    checkpoint: str,
    every: str | None,
    seconds: int | None = None,
) -> None:
    """Stream `frame` through `to(batch, id)`, which may say how many queues it wrote to.

    `to` may be one of Spark's own sinks instead. Without `every` (a processing time, "10 seconds")
    all there is now is taken, and that is it (Trigger.AvailableNow). The place where it stopped, or
    was stopped, is in the checkpoint: a batch that was under way is given to `to` again, with the
    same id and rows.
    """
    queues: dict[int, int] = {}
    spark = frame.sparkSession
    lines = Progress(queues)

    def take(batch: DataFrame, batch_id: int) -> None:
        wrote = to(batch, batch_id) if callable(to) else None
        if wrote is not None:
            queues[batch_id] = wrote

    spark.streams.addListener(lines)
    writer = frame.writeStream.foreachBatch(take) if callable(to) else to
    writer = writer.option("checkpointLocation", checkpoint)
    query = writer.trigger(**{"processingTime": every} if every else {"availableNow": True}).start()
    try:
        _wait(query, math.inf if seconds is None else seconds)
    finally:
        query.stop()
        lines.ended.wait(10)
        spark.streams.removeListener(lines)
