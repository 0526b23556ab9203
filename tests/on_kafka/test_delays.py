"""The delayed records on a Kafka: copied forward as its log is trimmed, found by a worker without
it.
"""

import shutil
import time
from pathlib import Path

from kproxy.tools.client import Client
from tests.delays.test_delays import put, saying, values
from tests.harness import eventually
from tests.on_kafka.test_storage import EAGER, fill, log_bounds, log_trimmed_beyond, trim
from tests.real_kafka import Kafka
from tests.workers import Workers

FAR_MS = 3_600_000
BATCHES = 20


def test_delayed_records_outlive_their_log_and_disk(kafka: Kafka, tmp_path: Path) -> None:
    workers = Workers(kafka, tmp_path, *EAGER, count=1, shards=1)
    with workers.running():
        (worker,) = workers.workers
        with worker.wire("later") as wire:
            assert wire.create("later", kproxy_delay="header").error_code == 0
            soon_ms = int(time.time() * 1000) + 8_000  # perhaps before it is killed
            for _ in range(BATCHES):
                sent = saying(soon_ms, FAR_MS + soon_ms, soon_ms, name="kproxy.deliver-at")
                assert put(wire, "later", sent).error_code == 0
            behind = log_bounds(kafka, f"{workers.prefix}-data", 0)[1]
            for number in range(3):
                fill(wire, f"noise-{number}", 60)
                trim(wire, f"noise-{number}", 55)
            log_trimmed_beyond(kafka, workers, 0, behind)
        worker.kill()
        shutil.rmtree(worker.data_dir)
        workers.again(0).wait_ready(60)
        workers.wait_served(60)
        with workers.workers[0].wire("later") as wire:
            eventually(lambda: len(values(wire, "later")) >= 2 * BATCHES, 60)
            time.sleep(0.5)
            assert sorted(v or b"" for v in values(wire, "later")) == (
                [b"0"] * BATCHES + [b"2"] * BATCHES
            )
        host, port = workers.workers[0].address.rsplit(":", 1)
        with Client((host, int(port))) as client:
            (waiting,) = client.delays("later", list(client.nodes()))
        assert waiting == {"partition": 0, "records": BATCHES, "next_ms": FAR_MS + soon_ms}
