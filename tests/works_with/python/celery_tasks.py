"""Celery: tasks by the Kafka transport of kombu, done by a worker in this process."""

import json
import sys
import time

from celery import Celery
from celery.contrib.testing.worker import start_worker

address, queue = sys.argv[1:3]
app = Celery(queue, broker=f"confluentkafka://{address}//")
app.conf.task_default_queue = queue
app.conf.broker_transport_options = {
    "kafka_topic_config": {"num_partitions": 1, "replication_factor": 1},
    "kafka_consumer_config": {"auto.offset.reset": "earliest"},
}
done: list[int] = []


@app.task(name="add")
def add(one: int, other: int) -> None:
    done.append(one + other)


for number in range(30):
    add.delay(number, 1)
with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=60):
    end = time.monotonic() + 90
    while len(done) < 30 and time.monotonic() < end:
        time.sleep(0.1)
json.dump(sorted(done), sys.stdout)
