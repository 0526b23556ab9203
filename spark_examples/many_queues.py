"""Count the records of many queues: python spark_examples/many_queues.py PREFIX [HOST:PORT]"""

import os
import sys

from pyspark.sql import SparkSession

from kproxy.spark import register

prefix, server = [*sys.argv[1:], "127.0.0.1:9092"][:2]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the one that has kproxy
spark = SparkSession.builder.getOrCreate()
register(spark)
source = spark.read.format("kproxy").option("kafka.bootstrap.servers", server)
rows = source.option("prefix", prefix).option("partitions", 2).load()
rows.groupBy("topic").count().orderBy("topic").show()
print(f"read in {rows.rdd.getNumPartitions()} tasks")
