"""The cluster that a checkpoint is of: its offsets mean nothing in another one."""

from typing import Any

import pipeline
import secured
from pyspark.sql import SparkSession


def check(spark: SparkSession, checkpoint: str, server: str, options: dict[str, str]) -> None:
    """Note the server's cluster in a checkpoint. Raises ClickException if it is another one's."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/cluster")
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    admin = secured.admin(server, options)
    here = admin.describe_cluster(request_timeout=30).result().cluster_id
    if not files.exists(path):
        file = files.create(path)
        file.writeUTF(here)
        file.close()
        return
    file = files.open(path)
    there = file.readUTF()
    file.close()
    if there != here:
        pipeline.fail(
            f"{checkpoint} is of the cluster {there}, and {server} is {here}:"
            " give that one's address, or another directory"
        )
