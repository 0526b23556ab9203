"""The rows' cache."""

from kproxy.virtual.rows import Partition
from kproxy.virtual.state import State
from kproxy.virtual.types import QueueId
from tests.fakes import DictKv

QUEUE = QueueId(bytes(16))


def test_rows_that_wait_for_a_write_do_not_fill_the_cache() -> None:
    state = State(DictKv(), rows_cached_max=100)
    made = [Partition() for _ in range(5000)]
    for index, row in enumerate(made):
        state.put_partition((QUEUE, index), row)
        assert len(state._partitions) <= 100
    assert state.changed == 5000
    assert [state.partition((QUEUE, index)) for index in range(5000)] == made
    state.kv.write(state.drain())
    assert state.changed == 0
    assert all(state.partition((QUEUE, index)) for index in range(5000))
