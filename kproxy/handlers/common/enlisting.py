"""Partitions and groups that take part in a transaction by being written to (KIP-890).

Before a Produce or a TxnOffsetCommit is appended, the coordinator is asked where the shard does not
know of the transaction yet: from the version of KIP-890 on to let it take part, before that only
whether it does.
"""

from collections.abc import Sequence

import anyio

from kproxy.common.errors import Code
from kproxy.loop.pace import slices
from kproxy.shard.appends import outcomes_of
from kproxy.transactions.beginnings import begun, by_shard
from kproxy.virtual.commands.transactions import ASKS_ONLY, NAMED_MAX, Enlist
from kproxy.virtual.levels import TRANSACTIONS_FROM
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.transactions import Participant, tag_of
from kproxy.worker.worker import Worker

ENLISTS_FROM = 12
"""The version of Produce from which a partition takes part by being written to."""
_ABORTABLE_SAID = 11
_AGAIN_S, _AGAIN_MAX_S = 0.02, 1.0


_PASSED = (
    Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_TXN_STATE,
    Code.INVALID_REQUEST,
)  # fmt: skip


def code_of_produce(code: Code, version: int) -> Code:
    """Return the code of a Produce for a partition that does not take part in its transaction."""
    if code == Code.PRODUCER_FENCED:
        return Code.INVALID_PRODUCER_EPOCH
    if code == Code.TRANSACTION_ABORTABLE:
        return code if version >= _ABORTABLE_SAID else Code.INVALID_TXN_STATE
    if code == Code.CONCURRENT_TRANSACTIONS and version >= ENLISTS_FROM:
        return code
    return code if code in _PASSED else Code.NOT_ENOUGH_REPLICAS


async def take_part(
    worker: Worker,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    participants: Sequence[Participant],
    *,
    enlists: bool,
) -> Code:
    """Return NONE if they take part, and their shards, which are served here, are told.

    Later appends to these shards come behind that. Wait for an earlier transaction of the producer
    to end, a second at most.
    """
    if not worker.level.reaches(TRANSACTIONS_FROM):
        return Code.INVALID_PRODUCER_ID_MAPPING  # nothing is to be logged: older releases read it
    version = 2 if enlists else ASKS_ONLY
    waited_s = 0.0
    while True:
        outcomes = await _asked(worker, transactional_id, producer_id, epoch, participants, version)
        code = next((outcome.code for outcome in outcomes if outcome.code), Code.NONE)
        if code != Code.CONCURRENT_TRANSACTIONS or not enlists or waited_s >= _AGAIN_MAX_S:
            break
        await anyio.sleep(_AGAIN_S)
        waited_s += _AGAIN_S
    if not code and enlists:
        _tell(worker, transactional_id, producer_id, epoch, participants, outcomes[0].number)
    return code


async def _asked(
    worker: Worker,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    participants: Sequence[Participant],
    version: int,
) -> list[Outcome]:
    home = shard_of(transactional_id, worker.routes.shards)
    tickets = []
    for some in slices(participants, NAMED_MAX):
        command = Enlist(transactional_id, producer_id, epoch, version, some, worker.now_ms())
        tickets.append(worker.routes.ask(home, command.envelope()))
    return await outcomes_of(tickets)


def _tell(
    worker: Worker,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    participants: Sequence[Participant],
    number: int,
) -> None:
    """Put a BEGIN in line in each shard; in the coordinator's own the ENLIST has done that."""
    home, tag = shard_of(transactional_id, worker.routes.shards), tag_of(transactional_id)
    for index, some in by_shard(participants):
        shard = worker.routes.serving(index)
        if index != home and shard is not None:  # not served: what would follow is refused
            shard.append([begun(producer_id, epoch, 2, number, tag, worker.now_ms(), some)])
