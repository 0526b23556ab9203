"""Rows of the writers of a shard's log: a worker's lives that have appended to it."""

from typing import NamedTuple

from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.schema import Rows


class Writer(NamedTuple):
    """The last counter that the log has of a writer, and the log offset of its first envelope."""

    counter: int
    since: int


WRITERS = Rows(RowKind.WRITER, "Q", Writer, "QQ")
