"""The place where Spark looks for data sources that are installed: packages named pyspark_*."""

from kproxy.spark import KproxyDataSource as DefaultSource

__all__ = ["DefaultSource"]
