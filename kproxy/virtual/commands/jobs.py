"""The command that changes a bulk job."""

from typing import Any

from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.levels import JOBS_FROM
from kproxy.virtual.rows.kinds import RowKind

NO_JOB = -1
"""The log offset of the last change of a job that there is not."""


@of_kind(
    Kind.CHANGE_JOB, DiskUse.ALWAYS, by_items, level=JOBS_FROM, publishes=(RowKind.JOB,),
    head="number=as_of", json="name value",
)  # fmt: skip
class ChangeJob(Command):
    """A job begins, goes on, or with None goes, if its last change was at this log offset.

    So whoever has looked at an earlier state of it changes nothing: an owner of before, or one that
    has not seen that the job was stopped. It is never refused for want of disk: a job may delete.
    """

    name: str
    as_of: int
    value: dict[str, Any] | None
