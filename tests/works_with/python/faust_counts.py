"""Faust: an agent counts values in a table, whose changes are in a queue of its own."""

import asyncio
import json
import sys
from typing import Any

import faust

address, queue = sys.argv[1:3]
app = faust.App(
    queue, broker=f"kafka://{address}", store="memory://", topic_replication_factor=1,
    topic_partitions=1, web_enabled=False, consumer_auto_offset_reset="earliest",
)  # fmt: skip
source = app.topic(queue, key_type=str, value_type=int, partitions=1)
counts: Any = app.Table("counts", default=int, partitions=1)


@app.agent(source)
async def count(stream: Any) -> None:
    async for key, number in stream.items():
        counts[key] += number


async def main() -> None:
    await app.start()
    for number in range(100):
        await source.send(key=f"k{number % 3}", value=number)
    while sum(counts.values()) < sum(range(100)):
        await asyncio.sleep(0.1)
    json.dump(dict(counts.items()), sys.stdout)
    await app.stop()


asyncio.run(asyncio.wait_for(main(), 90))
