"""The fold's part for bulk jobs: a change is taken by whoever knows the job as it stands."""

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.jobs import NO_JOB, ChangeJob
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows.jobs import Job, decode_job, job_key
from kproxy.virtual.state import State


class JobFold:
    """The application of CHANGE_JOB to a shard's state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def change(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = ChangeJob.decode(envelope)
        key = job_key(asked.name)
        known = self._state.get(key)
        as_of = NO_JOB if known is None else decode_job(known).changed_at
        if as_of != asked.as_of:
            return Outcome(Code.INVALID_UPDATE_VERSION, message="the job has changed meanwhile")
        row = None if asked.value is None else Job(asked.value, log_offset).encode()
        self._state.put(key, row)
        return Outcome(Code.NONE, log_offset)
