"""Groups as their rows have them, read in slices."""

from kproxy.common.errors import Code
from kproxy.groups.model.group import Group
from kproxy.groups.model.share_group import ShareGroup
from kproxy.loop.pace import lots
from kproxy.loop.steps import Steps, spent
from kproxy.shard.shard import Shard
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.groups import GroupRow
from kproxy.virtual.rows.shares import SHARE_QUEUES

_ROWS_AT_ONCE = 64
_QUEUES_AT_ONCE = 256
_PART_BYTES = 20  # bytes of a row's partition: partitions are what takes time in it
_ROW_PARTS = 20  # as many as take the time of a row without any


def restored(group: Group, head: GroupRow, shard: Shard) -> Steps[Group]:
    """Return the group, once it has become what its rows say."""
    prefix = group_rows.member_prefix(group.id)
    group.begin_restoring(head)
    try:
        if isinstance(group, ShareGroup):
            yield from _share_queues(group, shard)
        for rows in lots(shard.kv.scan, prefix, prefix + b"\xff", _ROWS_AT_ONCE):
            for key, data in rows:
                row = group_rows.decode_member(data)
                yield from group.restore(key[len(prefix) :].decode(), row)
            yield from spent(sum(_ROW_PARTS + len(data) // _PART_BYTES for _, data in rows))
    except BaseException:  # nobody waits for it any more
        group.end(Code.NOT_COORDINATOR)
        raise
    group.end_restoring()
    return group


def _share_queues(group: ShareGroup, shard: Shard) -> Steps[None]:
    for rows in lots(shard.kv.scan, *SHARE_QUEUES.range(group.id), _QUEUES_AT_ONCE):
        for key, data in rows:
            partitions = share_rows.decode_initialised(data)
            group.note_initialised(SHARE_QUEUES.parts(key)[1], partitions)
        yield
