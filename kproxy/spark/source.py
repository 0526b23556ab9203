"""`spark.read.format("kproxy").option("prefix", "user-")`: queues as rows of Spark's Kafka source.

A stream reads an entrance, or a few queues that are named: its offsets are those of what it reads,
and an entrance is one queue, whatever the number of those that it passes records on to.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from kproxy.metadata.routing import read_template
from kproxy.spark import planning
from kproxy.spark.columns import SCHEMA, Record
from kproxy.spark.options import LATEST, Options, SourceError, read_options
from kproxy.spark.planning import Span, Spans, Task
from kproxy.spark.reading import Names, read
from kproxy.tools.client import Client
from kproxy.tools.routes import ROUTE_TO

_LOST = "kproxy.route.unroutable"
_CLUSTER, _MADE = "/cluster", "/made"  # no queue can have such a name
Place = dict[str, Any]
"""The place of a stream: the cluster's id, the mark of each queue's own, and offsets by queue and
partition. LATEST is that of a
stream's beginning: where its first batch ends. Spark keeps the ends of batches alone, and asks for
the beginning again where the first batch is done again.
"""


class KproxyDataSource(DataSource):
    """The data source. Its options are read where they are given, so that a mistake shows there."""

    @classmethod
    def name(cls) -> str:
        return "kproxy"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return _Batch(read_options(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return _Stream(read_options(self.options, streams=True))


class _Batch(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options
        with options.client() as client:
            self._routes = _routes(client, options)

    def partitions(self) -> Sequence[InputPartition]:
        return self._options.told(lambda client: planning.batch(client, self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, self._routes, partition)


class _Stream(DataSourceStreamReader):
    def __init__(self, options: Options) -> None:
        self._options = options
        with options.client() as client:
            self._routes = _routes(client, options)

    def initialOffset(self) -> Place:  # noqa: N802
        return self._options.told(lambda client: self._place(client, planning.beginning))

    def latestOffset(self) -> Place:  # noqa: N802
        return self._options.told(lambda client: self._place(client, planning.ends))

    def _place(self, client: Client, asked: planning.Asked) -> Place:
        topics = planning.named(client, self._options.names)
        leaders = planning.leaders_of(topics)
        place: Place = {_CLUSTER: client.cluster_id(), _MADE: planning.marks(topics)}
        for (queue, partition), at in asked(client, leaders, self._options).items():
            place.setdefault(queue, {})[str(partition)] = at
        return place

    def partitions(self, start: Place, end: Place) -> Sequence[InputPartition]:
        cluster, made, starts = _split(start)
        now, marks, ends = _split(end)
        if cluster != now:
            raise SourceError(
                f"the checkpoint is of the cluster {cluster}, and this is"
                f" {now}: give the checkpoint's servers, or another checkpoint"
            )
        if self._options.fails and (left_out := sorted(starts.keys() - ends.keys())):
            raise SourceError(
                f"the checkpoint is of a stream that reads {left_out[0]} too: name it, or give"
                " another checkpoint; failOnDataLoss=false goes on without it"
            )
        spans = Spans()
        for queue in sorted(ends):
            before, its = starts.get(queue, {}), marks.get(queue, 0)
            again = its not in (0, made.get(queue, its))
            if again and self._options.fails:
                raise SourceError(
                    f"{queue} was deleted, and made again, since it was read;"
                    " failOnDataLoss=false goes on with the new one's first record"
                )
            if again:
                before = {}
            for partition, at in ends[queue].items():
                first = before.get(partition, 0)
                if first == LATEST:
                    first = at
                if first > at and self._options.fails:
                    raise SourceError(
                        f"{queue} ends at {at}, before the {first} that was read: it was deleted,"
                        " and made again; failOnDataLoss=false goes on from there"
                    )
                spans.add(Span(queue, int(partition), min(first, at), at, its))
        return planning.tasks(spans, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, self._routes, partition)


def _split(place: Place) -> tuple[str, dict[str, int], Place]:
    """Return the cluster's id, the marks of queues and the offsets."""
    offsets = dict(place)
    if (cluster := offsets.pop(_CLUSTER, None)) is None:
        cluster = offsets.pop("cluster")  # a checkpoint before 2026-11-26
    return cluster, offsets.pop(_MADE, {}), offsets


def _rows(
    options: Options, routes: Mapping[str, tuple[str, str]], partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Return an iterator over the rows of a task; Spark makes one of None where there is none."""
    if not isinstance(partition, Task):
        return iter(())
    return read(options, partition.spans(), _passed_on(routes) if routes else _own)


def _own(queue: str, records: list[Record]) -> list[str]:
    return [queue] * len(records)


def _routes(client: Client, options: Options) -> dict[str, tuple[str, str]]:
    """Return the template of each entrance, and where it passes a record on that it cannot name."""
    found = {}
    for name in options.names if options.entrance else ():
        said = client.settings(name, (ROUTE_TO, _LOST))
        if not (template := said.get(ROUTE_TO)):
            raise SourceError(f"{name} is not an entrance: it has no {ROUTE_TO}")
        found[name] = (template, said.get(_LOST) or name)
    return found


def _passed_on(routes: Mapping[str, tuple[str, str]]) -> Names:
    """Return what names the queue that each record of an entrance is passed on to."""

    def names(queue: str, records: list[Record]) -> list[str]:
        text, lost = routes[queue]
        template = read_template(text)
        found = []
        for _, _, key, _, said in records:
            headers = {name.encode(): value for name, value in said or ()}
            name, _ = template.fill(key, headers)
            found.append(lost if name in ("", queue) else name)
        return found

    return names
