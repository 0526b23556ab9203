"""Records that members of a share group do, release and reject at random, recorded as they go.

    python -m tests.clients.shares.work ADDRESS GROUP HISTORY PROCESS SEED QUEUE...

is one such member, with librdkafka; `Shares.java` is another. HISTORY is a file of its own, PROCESS
its name there: `tests/histories/operations.py`.
"""

import random
import sys
import time
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition

from tests.clients.shares.members import ACCEPT, REJECT, RELEASE, member, poll
from tests.histories.operations import Recorder

KINDS = {"accept": ACCEPT, "release": RELEASE, "reject": REJECT}
CHANCES = {"accept": 75, "release": 17, "reject": 8}
POISON = 100  # each such record is released, whoever has it
WORK_S = 0.2  # at most, for the records of one poll
ANSWER_S = 20  # for the acknowledgements of one poll; a member that waits longer ends


def work(
    address: str, group: str, recorder: Recorder, rng: random.Random, queues: list[str]
) -> None:
    """Work until something fails."""
    recorder.event("info", "join", queues)
    settings = {"max.poll.records": 20}
    consumer = member(address, group, *queues, **settings)
    answers: dict[tuple[str, int, int], str | None] = {}

    def answered(offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        for part, some in offsets.items():
            for offset in some:
                record = part.topic, part.partition, offset
                answers[record] = None if error is None else error.args[0].name()

    consumer.set_acknowledgement_commit_callback(answered)
    while True:
        began = time.monotonic_ns()
        messages = poll(consumer, 0.2)
        if not messages:
            continue
        given = [
            [one.topic(), one.partition(), one.offset(), one.value(), one.delivery_count()]
            for one in messages
        ]  # fmt: skip
        recorder.invoke("acquire", at=began).ok(given)
        said = []
        for one in messages:
            (kind,) = rng.choices(list(CHANCES), list(CHANCES.values()))
            if int(one.value() or b"") % POISON == 0:
                kind = "release"
            said.append([one.topic(), one.partition(), one.offset(), kind])
        time.sleep(rng.random() * WORK_S)
        answers.clear()
        saying = recorder.invoke("acknowledge", said)
        for one, (*_, kind) in zip(messages, said, strict=True):
            consumer.acknowledge(one, KINDS[str(kind)])
        consumer.commit_sync(ANSWER_S)
        saying.ok([[*record, error] for record, error in answers.items()])
        if len(answers) < len(said):  # an answer that comes later may be taken for that of another
            sys.exit("no answer")


if __name__ == "__main__":
    address, group, path, process, seed, *queues = sys.argv[1:]
    recorder = Recorder(Path(path), process)
    work(address, group, recorder, random.Random(int(seed)), queues)
