"""One local Spark for all Spark tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import SPARK_JARS, need, need_program
from tests.spark import jobs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow the warnings that Spark itself causes."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for kind in ("DeprecationWarning", "ResourceWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    need_program("java")
    need(SPARK_JARS.exists(), "Spark's Kafka jars: make spark-jars")
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable  # it runs data sources
    jars = ",".join(str(jar) for jar in sorted(SPARK_JARS.glob("*.jar")))
    builder = SparkSession.builder
    for name, value in jobs.module("table").SETTINGS.items():
        builder = builder.config(name, value)
    session = (
        builder.master("local[2]")
        .appName("kproxy-tests")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
