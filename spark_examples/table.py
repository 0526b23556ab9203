"""A Delta Lake table that takes each micro-batch exactly once.

Delta, as a table is its directory, without a catalogue to run, and as the commit that adds a batch
notes the batch's number with its writer: a batch done again is seen there, however many old
versions are gone. Each batch is a version to go back to; small files merge as a commit of their
own.
"""

from typing import Any

import pipeline
from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The defaults are for thousands of cores: 50 tasks to read the log, 10,000 to list files.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
"""The settings of Spark to write and read such tables."""
_JOB = "kproxy.job"
_MERGE_FROM = "spark.databricks.delta.autoCompact.minNumFiles"
_EXPIRE_EACH = 100  # batches


class Table:
    """The table in one directory, on any file system that Spark writes to."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        jvm: Any = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path
        files = path(directory).getFileSystem(spark._jsc.hadoopConfiguration())
        self._spark = spark
        self.directory: str = files.makeQualified(path(directory)).toString()
        self.checkpoint = f"{self.directory}/_checkpoint"
        self.exists: bool = files.exists(path(f"{self.directory}/_delta_log"))
        self._plain: bool = files.exists(path(f"{self.directory}/_spark_metadata"))
        self._goes_on: bool = files.exists(path(self.checkpoint))
        self._name = f"delta.`{self.directory}`"

    def open(
        self,
        job: str,
        rows: DataFrame,
        by: tuple[str, ...],
        *,
        merge: int = 8,
        keep: str = "7 days",
    ) -> None:
        """Make a table for such rows, or go on with that of the same job. Raises ClickException.

        `merge`: so many small files in a directory become one. `keep`: how long one can go back.
        """
        self._spark.conf.set(_MERGE_FROM, merge)
        kept = {
            _JOB: job,
            "delta.autoOptimize.autoCompact": "true",
            "delta.deletedFileRetentionDuration": f"interval {keep}",
            "delta.logRetentionDuration": f"interval {keep}",
        }
        said = ", ".join(f"'{name}' = '{value}'" for name, value in kept.items())
        if self._plain:
            pipeline.fail(f"{self.directory} has plain Parquet files: choose another directory")
        if not self.exists:
            columns = rows._jdf.schema().toDDL().replace(" NOT NULL", "")
            self._spark.sql(
                f"CREATE TABLE {self._name} ({columns}) USING delta"
                f" PARTITIONED BY ({', '.join(by)}) TBLPROPERTIES ({said})"
            )
            self.exists = True
            return
        told = self._spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        there = {row.key: row.value for row in told}
        if there.get(_JOB) != job:
            writer = there.get(_JOB) or "another writer"
            pipeline.fail(f"{self.directory} is a table of {writer}, not of {job}")
        if not self._goes_on and self.version():
            # Numbers that begin anew would count as done, and what they hold would be lost.
            pipeline.fail(
                f"{self.directory} has rows but no _checkpoint: what they hold is not known."
                " Choose another directory"
            )
        if any(there.get(name) != value for name, value in kept.items()):
            self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ({said})")

    def refuse(self) -> None:
        """Refuse a directory that has a table, for plain files. Raises ClickException."""
        if self.exists:
            pipeline.fail(f"{self.directory} has a table: choose another directory")

    def add(self, batch: DataFrame, batch_id: int) -> None:
        """Add a batch, unless the table has it."""
        writer = batch.write.format("delta").mode("append").option("txnAppId", "batches")
        writer = writer.option("txnVersion", batch_id).option("userMetadata", f"batch {batch_id}")
        writer.option("mergeSchema", "true").save(self.directory)
        if batch_id % _EXPIRE_EACH == _EXPIRE_EACH - 1:
            self._spark.sql(f"VACUUM {self._name}")  # versions older than `keep`

    def version(self, batch_id: int | None = None) -> int:
        """Return the newest version, or that which added a batch. Raises ClickException."""
        rows = self._spark.sql(f"DESCRIBE HISTORY {self._name}")
        if batch_id is not None:
            rows = rows.where(rows.userMetadata == f"batch {batch_id}")
        found: list[Any] = rows.select("version").orderBy("version", ascending=False).head(1)
        if not found:
            pipeline.fail(f"{self.directory} has no version of batch {batch_id}: it may be expired")
        return int(found[0].version)

    def read(self, batch_id: int | None = None) -> DataFrame:
        """Return all rows, or as they were once a batch was in. Raises ClickException."""
        if self._plain and batch_id is None:
            return self._spark.read.parquet(self.directory)
        if not self.exists:
            pipeline.fail(f"no table in {self.directory}: run archive.py first")
        reader = self._spark.read.format("delta")
        if batch_id is not None:
            reader = reader.option("versionAsOf", self.version(batch_id))
        return reader.load(self.directory)
