"""The Spark data source `kproxy`: very many queues in few tasks. `pip install kproxy[spark]`.

It imports kproxy's own client, and nothing of the server.
"""

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from kproxy.spark.source import KproxyDataSource

__all__ = ["KproxyDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the data source where Spark has not found it by itself."""
    try:
        spark.dataSource.register(KproxyDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
