"""Records that members of a share group do, release and reject at random, written down as they go.

    python -m tests.clients.shares.work ADDRESS GROUP NOTES SEED QUEUE...

is one such member, with librdkafka; `Shares.java` is another. Each note is a line in its own file,
which is on disk before the member goes on:

    born TIME
    given TIME QUEUE PARTITION OFFSET COUNT VALUE   it has the record; nothing was said of it
    says TIME QUEUE PARTITION OFFSET KIND           it is about to acknowledge it
    done TIME QUEUE PARTITION OFFSET                the worker has answered that it is so
    failed TIME QUEUE PARTITION OFFSET ERROR        or that it is not, or nothing

Times are nanoseconds of the machine's monotonic clock, which all processes share.
"""

import os
import random
import sys
import time
from pathlib import Path

from confluent_kafka import AcknowledgeType, KafkaException, TopicPartition

from tests.clients.shares.members import ACCEPT, REJECT, RELEASE, member, poll

KINDS = {"accept": ACCEPT, "release": RELEASE, "reject": REJECT}
CHANCES = {"accept": 75, "release": 17, "reject": 8}
POISON = 100  # each such record is released, whoever has it
WORK_S = 0.2  # at most, for the records of one poll
ANSWER_S = 20  # for the acknowledgements of one poll; a member that waits longer ends


class Notes:
    """A file that only grows; `write` returns once it is on disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lines: list[str] = []
        self.note("born")
        self.write()

    def note(self, kind: str, *words: object) -> None:
        self._lines.append(" ".join([kind, str(time.monotonic_ns()), *map(str, words)]) + "\n")

    def write(self) -> None:
        self._file.write("".join(self._lines).encode())
        os.fsync(self._file.fileno())
        self._lines.clear()


def work(address: str, group: str, notes: Notes, rng: random.Random, queues: list[str]) -> None:
    """Work until something fails."""
    settings = {"max.poll.records": 20}
    consumer = member(address, group, *queues, **settings)
    waiting: set[tuple[str, int, int]] = set()

    def answered(offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        for part, some in offsets.items():
            for offset in some:
                record = part.topic, part.partition, offset
                waiting.discard(record)
                if error is None:
                    notes.note("done", *record)
                else:
                    notes.note("failed", *record, error.args[0].name())

    consumer.set_acknowledgement_commit_callback(answered)
    while True:
        messages = poll(consumer, 0.2)
        notes.write()  # the late answers
        for one in messages:
            record = one.topic(), one.partition(), one.offset()
            notes.note("given", *record, one.delivery_count(), (one.value() or b"").decode())
        notes.write()
        said: dict[tuple[str, int, int], AcknowledgeType] = {}
        for one in messages:
            (kind,) = rng.choices(list(CHANCES), list(CHANCES.values()))
            if int(one.value() or b"") % POISON == 0:
                kind = "release"
            record = one.topic() or "", one.partition() or 0, one.offset() or 0
            said[record] = KINDS[kind]
            notes.note("says", *record, kind)
        notes.write()
        time.sleep(rng.random() * WORK_S if said else 0)
        waiting |= said.keys()
        for one in messages:
            consumer.acknowledge(
                one, said[one.topic() or "", one.partition() or 0, one.offset() or 0]
            )
        consumer.commit_sync(ANSWER_S)
        notes.write()
        if waiting:  # an answer that comes later may be taken for that of another
            sys.exit("no answer")


if __name__ == "__main__":
    address, group, path, seed, *queues = sys.argv[1:]
    work(address, group, Notes(Path(path)), random.Random(int(seed)), queues)
