"""FastStream: a subscriber answers each message of a queue in another one."""

import asyncio
import json
import sys

from faststream import FastStream
from faststream.kafka import KafkaBroker

address, queue = sys.argv[1:3]
broker = KafkaBroker(address)
app = FastStream(broker)
seen: set[int] = set()


@broker.subscriber(queue, group_id=queue, auto_offset_reset="earliest")
@broker.publisher(f"{queue}-out")
async def double(number: int) -> int:
    return 2 * number


@broker.subscriber(f"{queue}-out", group_id=f"{queue}-out", auto_offset_reset="earliest")
async def note(number: int) -> None:
    seen.add(number)


async def main() -> None:
    async with broker:
        await broker.start()
        for number in range(100):
            await broker.publish(number, queue)
        while len(seen) < 100:
            await asyncio.sleep(0.1)
    json.dump(sum(seen), sys.stdout)


asyncio.run(asyncio.wait_for(main(), 90))
