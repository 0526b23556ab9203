"""Which batches repeat one that is remembered, as the handler asks and as the fold judges."""

from random import Random

from kproxy.protocol.batch import read_header
from kproxy.virtual.producer_rows import BatchMetadata
from kproxy.virtual.producers import find, judge, remember, repeated
from kproxy.virtual.rows import Partition
from kproxy.virtual.state import State
from kproxy.virtual.types import QueueId
from tests.fakes import DictKv
from tests.together import together
from tests.wire import batch

KEY = (QueueId(b"q" * 16), 0)
LAST = 0x7FFFFFFF


@together("seed", range(40))
def test_the_handler_finds_every_repetition_that_the_fold_would(seed: int) -> None:
    """Around the place where sequences begin again, with epochs that go up."""
    random = Random(seed)
    state, row, offset = State(DictKv()), Partition(), 0
    sequence, epoch = random.choice((0, LAST - 20)), 0
    found = 0
    sent: list[tuple[int, int]] = []
    for _ in range(120):
        near, count = (sequence + random.randint(-12, 12)) & LAST, random.randint(1, 3)
        if sent and random.random() < 0.3:
            near, count = random.choice(sent[-8:])
        at = epoch - random.randint(0, 1) * (epoch > 0)
        header = read_header(batch(*[b"v"] * count, producer_id=7, epoch=at, sequence=near))
        known = find(state, KEY, row, 7)
        verdict = judge(known, header)
        repetition = verdict if isinstance(verdict, BatchMetadata) else None
        assert repeated(known, header) == repetition
        found += repetition is not None
        if verdict is None:
            remember(state, KEY, row, known, header, offset)
            offset += header.record_count
            sequence = (near + header.record_count) & LAST
            sent.append((near, count))
        if random.random() < 0.02:
            sequence, epoch = 0, epoch + 1
    assert found
