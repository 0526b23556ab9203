"""The Spark data source `kproxy`: very many queues in few tasks. `pip install kproxy[spark]`.

It imports kproxy's own client, and nothing of the server.
"""

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

if int(pyspark.__version__.split(".")[0]) < 4:
    raise ImportError(
        f"the data source kproxy needs Spark 4, and this is {pyspark.__version__}:"
        " read with format('kafka') here"
    )

from kproxy.spark.source import KproxyDataSource

__all__ = ["KproxyDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the data source where Spark has not found it by itself."""
    try:
        spark.dataSource.register(KproxyDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
