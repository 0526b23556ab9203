"""The cost of a subscribePattern over many queues for the worker."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import served
from tests.spark import jobs

QUEUES = 20_000
MICRO_BATCHES = 5


@pytest.mark.long
def test_planning_a_micro_batch_over_twenty_thousand_queues(spark: Any, tmp_path: Path) -> None:
    """Seconds of CPU, not of the clock: what else the machine does is not in them."""
    with served(tmp_path / "data") as server:
        for start in range(0, QUEUES, 1000):  # a producer is slow when it knows many topics
            jobs.write(
                server.address, [(f"plan-{start + i}", b"", b"x", None) for i in range(1000)]
            )
        process = psutil.Process(server.process.pid)
        options = {"subscribePattern": "plan-.*", "startingOffsets": "latest"}
        frame = jobs.load(spark.readStream, server.address, **options)
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            query.processAllAvailable()
            costs = []
            for number in range(MICRO_BATCHES):
                before = sum(process.cpu_times()[:2])
                jobs.write(server.address, [(f"plan-{number}", b"", b"y", None)])
                query.processAllAvailable()
                costs.append(sum(process.cpu_times()[:2]) - before)
                taken = [batch["numInputRows"] for batch in query.recentProgress]
                assert sum(taken) == number + 1
        finally:
            query.stop()
    said = ", ".join(f"{cost:.2f}" for cost in costs)
    print(f"worker CPU for a micro-batch over {QUEUES:,} queues: {said} s")  # noqa: T201
    assert sorted(costs)[MICRO_BATCHES // 2] < 3
