"""Partitions and groups that take part in a transaction by being written to (KIP-890).

Before a Produce or a TxnOffsetCommit is appended, the coordinator is asked where the shard does not
know of the transaction yet: from the version of KIP-890 on to let it take part, before that only
whether it does.
"""

import anyio

from kproxy.common.errors import Code
from kproxy.handlers.common.needs import Queues
from kproxy.shard.appends import outcomes_of
from kproxy.transactions.beginnings import Enlisting
from kproxy.virtual.commands.transactions import ASKS_ONLY
from kproxy.virtual.levels import TRANSACTIONS_FROM
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of

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


async def take_part(worker: Queues, asked: Enlisting, *, enlists: bool) -> Code:
    """Return NONE if they take part, and their shards, which are served here, are told.

    Later appends to these shards come behind that. Wait for an earlier transaction of the producer
    to end, a second at most.
    """
    if not worker.level.reaches(TRANSACTIONS_FROM):
        return Code.INVALID_PRODUCER_ID_MAPPING  # nothing is to be logged: older releases read it
    version = 2 if enlists else ASKS_ONLY
    home, waited_s = shard_of(asked.transactional_id, worker.routes.shards), 0.0
    while True:
        outcomes = await _asked(worker, asked, home, version)
        code = next((outcome.code for outcome in outcomes if outcome.code), Code.NONE)
        if code != Code.CONCURRENT_TRANSACTIONS or not enlists or waited_s >= _AGAIN_MAX_S:
            break
        await anyio.sleep(_AGAIN_S)
        waited_s += _AGAIN_S
    if not code and enlists:  # in the coordinator's own shard the ENLIST has done that
        for index, begin in asked.begins(2, outcomes[0].number, worker.now_ms()):
            shard = worker.routes.serving(index)
            if index != home and shard is not None:  # not served: what would follow is refused
                shard.append([begin])
    return code


async def _asked(worker: Queues, asked: Enlisting, home: int, version: int) -> list[Outcome]:
    enlistments = asked.enlists(version, worker.now_ms())
    return await outcomes_of([worker.routes.ask(home, one) for one in enlistments])
