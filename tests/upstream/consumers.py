"""A consumer of confluent-kafka's over lists."""

import time
from typing import Any

from confluent_kafka import TopicPartition

from kproxy.virtual.commands.envelope import Envelope, Kind, record_key


class Message:
    def __init__(self, topic: str, partition: int, offset: int, key: bytes, value: Any) -> None:
        self._found = topic, partition, offset, key, value

    def topic(self) -> str:
        return str(self._found[0])

    def partition(self) -> int:
        return int(self._found[1])

    def offset(self) -> int:
        return int(self._found[2])

    def key(self) -> bytes:
        return bytes(self._found[3])

    def value(self) -> Any:
        return self._found[4]

    def error(self) -> None:
        return None

    def headers(self) -> None:
        return None


class FakeConsumer:
    """Every partition holds the same APPENDs, with their offsets as bodies."""

    records = 20

    def __init__(self, settings: dict[str, Any]) -> None:
        self._at: dict[int, int] = {}
        self._paused: set[int] = set()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._at[one.partition] = one.offset

    assign = incremental_assign

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            del self._at[one.partition]

    def seek(self, one: TopicPartition) -> None:
        self._at[one.partition] = one.offset

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {one.partition for one in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {one.partition for one in partitions}

    def list_topics(self, *_: Any, **__: Any) -> None:
        pass

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 0, self.records

    def consume(self, count: int, seconds: float) -> list[Message]:
        found = []
        for partition, offset in list(self._at.items()):
            if offset < self.records and count and partition not in self._paused:
                envelope = Envelope(Kind.APPEND, body=b"%d" % offset)
                key = record_key(envelope)
                found.append(Message("t", partition, offset, key, envelope.body))
                self._at[partition] += 1
                count -= 1
                break
        if not found and seconds:
            time.sleep(min(seconds, 0.001))
        return found

    def close(self) -> None:
        pass
