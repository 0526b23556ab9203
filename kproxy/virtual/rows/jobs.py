"""Rows of bulk jobs, in shard 0: CHANGE_JOB puts them. The fold reads nothing of a job's value."""

from typing import Any, NamedTuple

import orjson

from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import ShardId

JOBS_SHARD = ShardId(0)
_JSON = ord("{")


class Job(NamedTuple):
    """A bulk job (`server.bulk_jobs`)."""

    value: dict[str, Any]
    changed_at: int
    """Log offset of shard 0."""

    def encode(self) -> bytes:
        return orjson.dumps({"value": self.value, "changed_at": self.changed_at})


def job_key(name: str) -> bytes:
    return RowKind.JOB + name.encode()


def decode_job(data: bytes) -> Job:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    if data[0] != _JSON:
        raise later_form("a row of kind !", data[0])
    values = orjson.loads(data)
    return Job(values["value"], values["changed_at"])
