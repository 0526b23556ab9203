"""TxnOffsetCommit (28), versions 0 to 6: offsets that wait for the end of a transaction (KIP-447).

It goes to the coordinator of the group. From version 5 on the group takes part in the transaction
by this; before, AddOffsetsToTxn has said so. Version 6 names topics by id, and says what is wrong
with a member as OffsetCommit does (KIP-1319).
"""

from collections.abc import Callable, Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.model.classic_group import ClassicGroup
from kproxy.handlers.common import enlisting
from kproxy.handlers.common.committing import (
    Committer,
    Wanted,
    committer,
    lots,
    note,
    sort_out,
)
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.needs import TransactionNeeds
from kproxy.security.acls import Op
from kproxy.shard.appends import append
from kproxy.shard.shard import Shard
from kproxy.transactions.beginnings import Enlisting
from kproxy.virtual.commands.transactions import TransactionCommit
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.transactions import NO_NUMBER, OPEN_GROUPS, Participant
from kproxy.worker.request import Request

_ENLISTS_FROM = 5
_BY_ID = 6
_ABORTABLE_SAID = 4
_RETRIED = (
    Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT, Code.KAFKA_STORAGE_ERROR,
    Code.COORDINATOR_NOT_AVAILABLE,
)  # fmt: skip


async def commit(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return a TxnOffsetCommitResponse; answered when the offsets wait in the log."""
    fault, shard = _forbidden(request), None
    by = Committer(getattr(request.body, "generation_id", -1))
    if not fault:
        fault, shard, by = await _group_fault(worker, request, by)
    by_id = request.version >= _BY_ID
    fault_in = by.fault_in if by_id else _as_classic(by.fault_in)
    topics, wanted = await sort_out(worker, request, fault, by_id=by_id, fault_in=fault_in)
    if wanted and shard is not None:
        await _append(worker, request, shard, by.epoch, wanted)
    return {"topics": topics}


def _forbidden(request: Request) -> Code:
    """Return what the client lacks for all of it."""
    if not request.permits.transaction(Op.WRITE, request.body.transactional_id):
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not request.permits.group(Op.READ, request.body.group_id):
        return Code.GROUP_AUTHORIZATION_FAILED
    return Code.NONE


def _as_classic(fault_in: Callable[[str, int], Code] | None) -> Callable[[str, int], Code] | None:
    """Return the same with the codes of classic groups, which is what a transaction is told."""
    if fault_in is None:
        return None
    return lambda topic, index: Code.ILLEGAL_GENERATION if fault_in(topic, index) else Code.NONE


async def _group_fault(
    worker: TransactionNeeds, request: Request, by: Committer
) -> tuple[Code, Shard | None, Committer]:
    """Return the fault of the request as a whole, the group's shard, and who commits."""
    body = request.body
    if not body.group_id:
        return Code.INVALID_GROUP_ID, None, by
    if not body.transactional_id:
        return Code.INVALID_REQUEST, None, by
    try:
        coordinator = coordinator_of(worker, body.group_id)
        group = await coordinator.load(body.group_id)
        if request.version < _BY_ID:
            await worker.routes.wait_for_catalogue(topic.name for topic in body.topics)
    except KafkaError as error:
        return error.code, None, by
    shard, head = coordinator.shard, coordinator.head(body.group_id)
    if head is not None and head.kind == "share":
        return Code.GROUP_ID_NOT_FOUND, None, by
    generation, member = getattr(body, "generation_id", -1), getattr(body, "member_id", "")
    instance = getattr(body, "group_instance_id", None)
    if generation < 0 and not member and instance is None:
        return Code.NONE, shard, by  # anybody may
    if group is None:
        if generation < 0:
            return Code.NONE, shard, by  # anybody may, to a group without members
        by_id = request.version >= _BY_ID
        absent = Code.GROUP_ID_NOT_FOUND if by_id else Code.ILLEGAL_GENERATION
        return Code.UNKNOWN_MEMBER_ID if head is not None else absent, None, by
    if isinstance(group, ClassicGroup):
        fault = group.member_fault(member, instance, generation)
        if not fault and generation < 0:
            fault = Code.ILLEGAL_GENERATION
    else:
        fault = group.commit_fault(member, instance, generation, request.version + _ANY_VERSION)
        fault = _told(fault, request.version)
    return fault, shard, committer(group, member, generation)


_ANY_VERSION = 9  # a group asks which version of OffsetCommit a member knows: any will do


async def _append(
    worker: TransactionNeeds, request: Request, shard: Shard, epoch: int, wanted: list[Wanted]
) -> None:
    """Append offsets to the group's shard, and note in their answers what became of them."""
    body = request.body
    code, number = await _take_part(worker, request, shard)
    if code:
        note(wanted, [code] * len(wanted), code)
        return
    member = getattr(body, "member_id", "")
    for some in lots(wanted):
        command = TransactionCommit(
            body.group_id, member, epoch, body.producer_id, body.producer_epoch,
            [offset for _, offset in some], worker.now_ms(), number,
        )  # fmt: skip
        outcome = await append(shard, command.envelope(worker.level.value))
        codes = outcome.codes or (_code(outcome.code, request.version),) * len(some)
        note(some, codes, Code.UNKNOWN_TOPIC_OR_PARTITION)
        await request.budget.step()


async def _take_part(worker: TransactionNeeds, request: Request, shard: Shard) -> tuple[Code, int]:
    """Return whether the group takes part, and in which transaction, as far as it is known."""
    body, enlists = request.body, request.version >= _ENLISTS_FROM
    opened = OPEN_GROUPS.get(shard.state.get, body.group_id, body.producer_id)
    tag = transaction_rows.tag_of(body.transactional_id)
    if opened is not None and (opened.epoch, opened.tag) == (body.producer_epoch, tag):
        if opened.version >= 2 or not enlists:  # else an earlier one may have had this epoch
            return Code.NONE, opened.number
    asked = Enlisting(
        body.transactional_id, body.producer_id, body.producer_epoch,
        [Participant(shard.shard, group=body.group_id)],
    )  # fmt: skip
    code = await enlisting.take_part(worker, asked, enlists=enlists)
    return _code(code, request.version), NO_NUMBER


def _code(code: Code, version: int) -> Code:
    if code == Code.PRODUCER_FENCED:
        return Code.INVALID_PRODUCER_EPOCH
    if code in (Code.TRANSACTION_ABORTABLE, Code.INVALID_TXN_STATE):
        said = version >= _ABORTABLE_SAID
        return Code.TRANSACTION_ABORTABLE if said else Code.INVALID_TXN_STATE
    return Code.COORDINATOR_NOT_AVAILABLE if code in _RETRIED else _told(code, version)


def _told(fault: Code, version: int) -> Code:
    """Return a member's fault as its version knows it: before 6 it is told as in classic groups."""
    known = version >= _BY_ID or fault != Code.STALE_MEMBER_EPOCH
    return fault if known else Code.ILLEGAL_GENERATION
