"""Parquet files that take each micro-batch exactly once, and can be merged without losing that.

A file's name says which batches it holds: 00000007-00000007.parquet, and merged with what came
before 00000000-00000007.parquet. It appears whole, by a rename. A batch done again finds its file
there; a file whose batches another of its directory holds as well is dead, and is not read.
"""

import itertools
from typing import Any, NamedTuple

import pipeline
from pyspark.sql import DataFrame, SparkSession

_SMALL_BYTES = 128 << 20


class File(NamedTuple):
    first: int
    last: int
    size: int
    path: str

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


def living(found: list[File]) -> list[File]:
    """Return the files of one directory that are to be read, in order of their batches."""
    alive: list[File] = []
    for file in sorted(found, key=lambda file: (file.first, -file.last)):
        if not alive or file.last > alive[-1].last:
            alive.append(file)
    return alive


class Files:
    """DIR/<column>=<value>/…/<batches>.parquet, on any file system that Spark writes to."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        jvm: Any = spark._jvm
        self._spark = spark
        self._path = jvm.org.apache.hadoop.fs.Path
        root = self._path(directory)
        self._fs = root.getFileSystem(spark._jsc.hadoopConfiguration())
        self.directory: str = self._fs.makeQualified(root).toString()
        self.checkpoint = f"{self.directory}/_work/checkpoint"
        self._staging = f"{self.directory}/_work/staging"
        self._touched: set[str] = set()

    def check_checkpoint(self) -> None:
        """Refuse to number batches anew over files that have numbers: they would count as done."""
        if self._all() and not self._fs.exists(self._path(self.checkpoint)):
            pipeline.fail(
                f"{self.directory} has files but no _work/checkpoint: what they hold is not known."
                " Choose another directory"
            )

    def read(self) -> DataFrame:
        """Return every row, once."""
        paths = [file.path for file in self._living()]
        if not paths:
            pipeline.fail(f"no Parquet files in {self.directory}: run archive.py first")
        return self._spark.read.option("basePath", self.directory).parquet(*paths)

    def commit(
        self, batch: DataFrame, batch_id: int, by: tuple[str, ...], sort: tuple[str, ...]
    ) -> None:
        """Add a batch, one file for each combination of the columns `by`."""
        rows = batch.repartition(8, *by).sortWithinPartitions(*by, *sort)
        rows.write.partitionBy(*by).mode("overwrite").parquet(self._staging)
        for status in self._glob(self._staging + "/*" * len(by) + "/part-*.parquet"):
            source = status.getPath().toString()
            inside = source[source.index("/_work/staging/") + len("/_work/staging/") :]
            directory = f"{self.directory}/{inside.rpartition('/')[0]}"
            self._move(source, f"{directory}/{batch_id:08d}-{batch_id:08d}.parquet")
            self._touched.add(directory)

    def compact(self, files_max: int, sort: tuple[str, ...]) -> None:
        """Merge neighbours where a directory that was written to has more small files than that."""
        for directory in sorted(self._touched):
            found = self._files(directory + "/*.parquet")
            for small, run in itertools.groupby(
                living(found), lambda file: file.size < _SMALL_BYTES
            ):
                merging = list(run)
                if small and len(merging) > files_max:
                    found.append(self._merge(directory, merging, sort))
            for file in set(found) - set(living(found)):
                self._fs.delete(self._path(file.path), False)
        self._touched.clear()

    def _merge(self, directory: str, merging: list[File], sort: tuple[str, ...]) -> File:
        rows = self._spark.read.parquet(*(file.path for file in merging))
        ordered = rows.coalesce(1).sortWithinPartitions(*sort)
        ordered.write.mode("overwrite").parquet(self._staging)
        (status,) = self._glob(self._staging + "/part-*.parquet")
        first, last = merging[0].first, merging[-1].last
        path = f"{directory}/{first:08d}-{last:08d}.parquet"
        self._move(status.getPath().toString(), path)
        return File(first, last, status.getLen(), path)

    def _move(self, source: str, target: str) -> None:
        path = self._path(target)
        if self._fs.exists(path):
            return  # an earlier attempt at this batch wrote it
        self._fs.mkdirs(path.getParent())
        if not self._fs.rename(self._path(source), path):
            pipeline.fail(f"could not rename {source} to {target}")

    def _glob(self, pattern: str) -> list[Any]:
        return list(self._fs.globStatus(self._path(pattern)) or ())

    def _files(self, pattern: str) -> list[File]:
        found = []
        for status in self._glob(pattern):
            path = status.getPath()
            first, _, last = path.getName().removesuffix(".parquet").partition("-")
            found.append(File(int(first), int(last), status.getLen(), path.toString()))
        return found

    def _all(self) -> list[File]:
        patterns = (self.directory + "/*=*" * depth + "/*.parquet" for depth in (1, 2))
        return [file for pattern in patterns for file in self._files(pattern)]

    def _living(self) -> list[File]:
        found = sorted(self._all(), key=lambda file: file.directory)
        groups = itertools.groupby(found, key=lambda file: file.directory)
        return [file for _, group in groups for file in living(list(group))]
