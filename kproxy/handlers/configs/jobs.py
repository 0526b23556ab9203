"""The bulk jobs as an operator sees and changes them; for `kproxy bulk`.

No settings: DescribeConfigs and IncrementalAlterConfigs of a broker carry them, and the worker that
serves shard 0 answers. A job is for who has ordered it, and for who may change the cluster.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import ConfigNeeds
from kproxy.handlers.common.permitted import denied
from kproxy.metadata import queue_settings
from kproxy.metadata.lane_settings import rate_of
from kproxy.metadata.setting import BROKER, SET_BY
from kproxy.protocol.name_search import read_search
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.security.behalf import signer
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.jobs import NO_JOB, ChangeJob
from kproxy.virtual.levels import JOBS_FROM
from kproxy.virtual.rows.jobs import JOBS_SHARD, Job, decode_job, job_key
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import name_of
from kproxy.worker.request import Request

JOB = "kproxy.job."
"""The prefix of a job's name: a value begins or changes it, none ends it."""
JOBS = "kproxy.state.jobs"
"""The jobs that there are, for DescribeConfigs."""
_JOBS_MAX = 100
_NAME_CHARACTERS, _VALUE_CHARACTERS = 100, 20_000
_SET, _DELETE = range(2)
_TRIES = 5
_CHANGED = frozenset(("rate", "paused"))
_ORDERED: dict[str, type] = {
    "do": str, "set": dict, "unset": list, "search": dict, "queues": int, "rate": str,
    "paused": bool,
}  # fmt: skip
"""The fields of an order, with their types; `_CHANGED` may be said again later."""


def orders(resource: Any) -> bool:
    """Return whether a change of a broker's settings is of jobs."""
    said = (change.name.startswith(JOB) for change in resource.configs)
    return resource.resource_type == BROKER and any(said)


async def order(
    worker: ConfigNeeds, request: Request, resource: Any, *, validate_only: bool
) -> None:
    """Begin, change or end jobs. Raise KafkaError."""
    shard = _shard(worker)
    for change in resource.configs:
        name, operation = change.name.removeprefix(JOB), change.config_operation
        if not change.name.startswith(JOB) or operation not in (_SET, _DELETE):
            raise KafkaError(Code.INVALID_REQUEST, "a job has no settings beside it")
        if not (0 < len(name) <= _NAME_CHARACTERS and name.isprintable()):
            raise KafkaError(Code.INVALID_REQUEST, "a job's name has 1 to 100 characters")
        said = None if operation == _DELETE else _read(change.value)
        for _ in range(_TRIES):
            ended = await _ordered(worker, request, shard, name, said, validate_only=validate_only)
            if ended:
                break
        else:
            raise KafkaError(Code.REQUEST_TIMED_OUT, f"job {name} changes all the time: try again")


def _shard(worker: ConfigNeeds) -> Shard:
    if not worker.level.reaches(JOBS_FROM):
        raise KafkaError(
            Code.UNSUPPORTED_VERSION,
            f"jobs need level {JOBS_FROM}: once every worker runs this release, put it in force"
            " with `kproxy upgrade --finalize`",
        )
    shard = worker.routes.serving(JOBS_SHARD)
    if shard is None:
        raise KafkaError(Code.NOT_CONTROLLER, "another worker has the jobs")
    return shard


async def _ordered(
    worker: ConfigNeeds, request: Request, shard: Shard, name: str, said: dict[str, Any] | None,
    *, validate_only: bool,
) -> bool:  # fmt: skip
    """Change a job, as it stands; whether nobody else has meanwhile."""
    row = shard.state.get(job_key(name))
    value: dict[str, Any] | None
    if row is not None:
        job = decode_job(row)
        if not _is_for(request, job, Op.ALTER_CONFIGS):
            raise denied(Code.CLUSTER_AUTHORIZATION_FAILED)
        if said is not None and not said.keys() <= _CHANGED:
            raise KafkaError(Code.DUPLICATE_RESOURCE, f"there is a job {name} already")
        value, as_of = None if said is None else job.value | said, job.changed_at
    elif said is None:
        raise KafkaError(Code.RESOURCE_NOT_FOUND, f"there is no job {name}")
    else:
        value, as_of = await _new(worker, request, said), NO_JOB
    commands = [ChangeJob(name, as_of, value)]
    if row is None:
        commands += _room_for_one(shard)
    if validate_only:
        return True
    outcome, *_ = await shard.append([one.envelope() for one in commands]).wait()
    return not outcome.code


async def _new(worker: ConfigNeeds, request: Request, said: dict[str, Any]) -> dict[str, Any]:
    """Return a job that begins. Raise KafkaError."""
    deletes = said.get("do") == "delete"
    if said.get("do") not in ("delete", "set") or not said.get("search"):
        raise KafkaError(Code.INVALID_REQUEST, "a job deletes or sets, and searches for names")
    given, dropped = said.get("set", {}), said.get("unset", [])
    if deletes == bool(given or dropped):
        raise KafkaError(Code.INVALID_REQUEST, "a job has settings, or deletes")
    queue_settings.check(given)
    if SET_BY in dropped:
        raise KafkaError(Code.INVALID_CONFIG, f"{SET_BY} is kproxy's own")
    search = read_search(json.dumps(said["search"]).encode())
    search.matcher()
    if not (search.prefix or search.contains or search.matching):
        raise KafkaError(Code.INVALID_REQUEST, "a job names the queues: .* means all")
    op = Op.DELETE if deletes else Op.ALTER_CONFIGS
    if not await request.permits.any_topic(op, request.budget):
        raise denied(Code.TOPIC_AUTHORIZATION_FAILED)
    return {
        "by": worker.signatures.sign(request.peer)[SET_BY], "at_ms": worker.now_ms(),
        "do": said["do"], "set": given, "unset": dropped, "queues": said.get("queues", -1),
        "search": {"prefix": search.prefix, "contains": search.contains,
                   "matching": search.matching},
        "rate": said.get("rate", ""), "paused": said.get("paused", False),
        "after": "", "lot": [], "done": 0, "refused": 0, "reason": "", "over": False,
    }  # fmt: skip


def _room_for_one(shard: Shard) -> list[ChangeJob]:
    """Return the end of the oldest job that is over, where there is no room. Raise KafkaError."""
    rows = list(_rows(shard))
    if len(rows) < _JOBS_MAX:
        return []
    over = [(job.changed_at, name) for name, job in rows if job.value["over"]]
    if not over:
        raise KafkaError(Code.POLICY_VIOLATION, f"there are {_JOBS_MAX} jobs: end one of them")
    as_of, name = min(over)
    return [ChangeJob(name, as_of, None)]


def _read(text: str | None) -> dict[str, Any]:
    """Read what an order says. Raise KafkaError."""
    wrong = KafkaError(Code.INVALID_REQUEST, "an order of a job is JSON, with fields it may have")
    try:
        said = json.loads(text or "") if len(text or "") <= _VALUE_CHARACTERS else None
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(said, dict) or not said:
        raise wrong
    if any(type(value) is not _ORDERED.get(name) for name, value in said.items()):
        raise wrong
    texts = [*said.get("unset", ()), *said.get("set", {}).values()]
    if not all(isinstance(one, str) for one in texts):
        raise wrong
    try:
        rate_of(said.get("rate", ""))
    except ValueError as error:
        raise KafkaError(Code.INVALID_REQUEST, str(error)) from None
    return said


def _rows(shard: Shard) -> Iterator[tuple[str, Job]]:
    for key, data in islice(shard.kv.scan(*RowKind.JOB.range()), 2 * _JOBS_MAX):
        yield name_of(key), decode_job(data)


def _is_for(request: Request, job: Job, op: Op) -> bool:
    """Return whether a job is a client's own, or it may do so to all."""
    if request.permits.all or signer(job.value["by"]).principal == request.peer.principal:
        return True
    return request.permits.sees(op, Resource.CLUSTER, CLUSTER_NAME)


async def listed(worker: ConfigNeeds, request: Request) -> str:
    """Return the jobs that a client may see, as JSON; null where another worker has them."""
    shard = worker.routes.serving(JOBS_SHARD)
    if shard is None:
        return "null"
    found = []
    for name, job in list(_rows(shard)):
        if _is_for(request, job, Op.DESCRIBE_CONFIGS):
            told = {key: value for key, value in job.value.items() if key not in ("lot", "by")}
            who = signer(job.value["by"]).principal
            found.append({"job": name, "by": who, "lot": len(job.value["lot"]), **told})
        await request.budget.step()
    return json.dumps(found)
