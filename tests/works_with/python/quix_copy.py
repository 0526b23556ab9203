"""Quix Streams: a dataframe over one queue is written to another one, exactly once."""

import json
import sys

from quixstreams import Application

address, queue = sys.argv[1:3]
app = Application(
    broker_address=address, consumer_group=queue, auto_offset_reset="earliest",
    processing_guarantee="exactly-once", state_dir=sys.argv[3], loglevel="WARNING",
)  # fmt: skip
source, target = app.topic(queue), app.topic(f"{queue}-out")
with app.get_producer() as producer:
    for number in range(100):
        message = source.serialize(key=f"k{number % 3}", value={"number": number})
        producer.produce(topic=source.name, key=message.key, value=message.value)
frame = app.dataframe(source)
frame["sum"] = frame.apply(lambda row, state: add(row, state), stateful=True)
frame.to_topic(target)


def add(row, state):  # type: ignore[no-untyped-def]
    total = state.get("sum", 0) + row["number"]
    state.set("sum", total)
    return total


app.run(count=100, timeout=60)
json.dump("ran", sys.stdout)
