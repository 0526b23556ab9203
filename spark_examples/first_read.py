"""Print a queue with Spark: python spark_examples/first_read.py QUEUE [HOST:PORT]"""

import glob
import sys

import pyspark
from pyspark.sql import SparkSession

queue, server = [*sys.argv[1:], "127.0.0.1:9092"][:2]
jars = ",".join(glob.glob(f".tools/spark-jars-{pyspark.__version__}/*.jar"))
spark = SparkSession.builder.config("spark.jars", jars).getOrCreate()
source = spark.read.format("kafka").option("kafka.bootstrap.servers", server)
rows = source.option("subscribe", queue).load()
rows.selectExpr("topic", "offset", "CAST(value AS STRING)").orderBy("offset").show()
