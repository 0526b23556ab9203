"""A group that reads queues and commits, whose committed offsets are watched."""

import threading
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.harness import Working

_SESSION_MS = 6000


class Committing(Working):
    """Two members that commit what they have read, until `stop`."""

    def __init__(self, address: str, queues: list[str], **settings: object) -> None:
        self._settings = {
            "bootstrap.servers": address, "group.id": "committing", "log_level": 0,
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "session.timeout.ms": _SESSION_MS, "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 5000,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }  # fmt: skip
        self._queues = queues
        self._lock = threading.Lock()
        self.read: dict[str, set[int]] = {queue: set() for queue in queues}  # offsets
        self.committed: dict[str, int] = {}  # the highest that was answered
        self.commits = 0
        self.gone_back: list[tuple[str, int, int]] = []
        super().__init__(self._work, self._work, self._watch)

    def _work(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe(self._queues)
        while not self._stop.is_set():
            messages = [one for one in consumer.consume(200, 0.2) if one.error() is None]
            if not messages:
                continue
            with self._lock:
                for one in messages:
                    self.read[one.topic() or ""].add(one.offset() or 0)
            try:
                for done in consumer.commit(asynchronous=False) or ():
                    if done.error is None and done.offset >= 0:
                        self._is_committed(done.topic, done.offset)
            except KafkaException:  # not answered, or refused: a rebalance, a network that fails
                continue
        consumer.close()

    def _is_committed(self, queue: str, offset: int) -> None:
        with self._lock:
            self.commits += 1
            self.committed[queue] = max(offset, self.committed.get(queue, 0))

    def _watch(self) -> None:
        """Ask for what is committed: never less than what was answered before the question."""
        consumer = Consumer({**self._settings, "group.id": "committing"})
        parts = [TopicPartition(queue, 0) for queue in self._queues]
        while not self._stop.is_set():
            with self._lock:
                before = dict(self.committed)
            try:
                found = consumer.committed(parts, timeout=10)
            except KafkaException:
                continue
            for one in found:
                if one.error is None and one.topic in before and one.offset < before[one.topic]:
                    self.gone_back.append((one.topic, before[one.topic], one.offset))
                elif one.error is None and one.offset > 0:
                    with self._lock:
                        seen = self.committed.get(one.topic, 0)
                        self.committed[one.topic] = max(seen, one.offset)
            time.sleep(0.1)
        consumer.close()
