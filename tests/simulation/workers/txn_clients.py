"""Clients with transactional ids in the simulated cluster, over the real handlers.

A `TxnLife` is one life of such a client. It writes to several queues, commits offsets of groups,
and takes what it is answered as Kafka's own clients do: it asks again where it is told to, gives a
connection up where no answer comes, and asks for another epoch where it does not know what became
of a request. It may end in the middle, or go on while the next life has begun: then it is a zombie.
"""

import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio

from kproxy.common.errors import Code
from kproxy.handlers.produce import produce
from kproxy.handlers.transactions import offsets as transaction_offsets
from kproxy.handlers.transactions import transactions
from kproxy.metadata.catalogue import QueueIds
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import RequestHeader, decode_response
from kproxy.protocol.produce_request import ProduceRequest, Topic
from kproxy.shard.appends import outcomes_of
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.transactions import (
    OPEN_TRANSACTIONS,
    TRANSACTIONS,
    Participant,
    Transaction,
    TransactionState,
)
from kproxy.virtual.types import QueueId, ShardId
from kproxy.worker.request import NextRequestSignal, Request
from kproxy.worker.worker import Worker
from tests.commands import command
from tests.simulation.workers.cluster import World
from tests.simulation.workers.sim_worker import Life
from tests.simulation.workers.txn_truth import Fate, Told, Truth
from tests.wire import batch

IDS = [f"x{i}" for i in range(6)]
QUEUES = [f"t{i}" for i in range(3)]
GROUPS = [f"tg{i}" for i in range(3)]
_PARTITIONS = 4
_TRANSACTIONAL = 0x10
_TIME_MS = 10**12
_WAITED_S = 1.9  # a little less than an end waits for those who take part
_TRIES = 20
_LATE_S = 6.0
_ENDS_LATE = 30  # times as often as other requests: an end that comes late does most harm
_AGAIN = frozenset((
    Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.CONCURRENT_TRANSACTIONS, Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS,
    Code.REQUEST_TIMED_OUT, Code.KAFKA_STORAGE_ERROR, Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.UNKNOWN_TOPIC_ID, Code.OPERATION_NOT_ATTEMPTED,
))  # fmt: skip
_FENCED = frozenset(
    (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING)
)
_NO_PART = frozenset((Code.INVALID_TXN_STATE, Code.TRANSACTION_ABORTABLE))

Handler = Callable[[Worker, Request], Awaitable[Any]]
_Key = tuple[QueueId, int]


class Over(Exception):
    """The end of this life."""


class Aborts(Exception):
    """The end of a transaction that cannot be committed."""


class Connection(NextRequestSignal):
    """A connection to one worker."""

    __slots__ = ("given_up",)

    def __init__(self) -> None:
        super().__init__()
        self.given_up = False


class TxnClients:
    """All of them: `live` goes through the lives of one transactional id."""

    def __init__(self, world: World, lives: Mapping[str, Life], given: set[int]) -> None:
        self.world, self.lives, self.rng = world, lives, world.rng
        self.truth = Truth(given)
        self._serial = 0
        self.settled = False

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    @property
    def reliable(self) -> bool:
        return self.truth.reliable

    async def live(self, name: str) -> None:
        number = 0
        async with anyio.create_task_group() as tasks:
            while True:
                life, number = TxnLife(self, name, number), number + 1
                scope = anyio.CancelScope()
                tasks.start_soon(life.run, scope)
                with anyio.move_on_after(self.rng.choice((2.0, 8.0, 20.0)) * 2 * self.rng.random()):
                    await life.ended.wait()
                if self.rng.random() < 0.5:
                    scope.cancel()  # in the middle; else it is a zombie from now on
                await anyio.sleep(self.rng.random() * 0.5)

    async def settle(self, *, fence: bool) -> None:
        """Leave the end of open transactions to another life, or to time."""
        for name in IDS:
            if fence or self.rng.random() < 0.3:
                await TxnLife(self, name, 1000).begin()
        self.settled = True

    # -- whom they ask

    def served(self, name: str, index: int = 0) -> Life | None:
        number = shard_of(name, len(self.world.logs), index)
        found = [one for one in self.lives.values() if one.alive and one.serving(number)]
        if self.rng.random() < 0.02:
            found = list(self.lives.values())  # it does not know better
        return self.rng.choice(found) if found else None

    def row(self, name: str) -> Transaction | None:
        """Return an id's row as all of the log has it."""
        folded = self.world.folded[shard_of(name, len(self.world.logs))]
        data = folded.rows.get(TRANSACTIONS.key(name))
        return None if data is None else TRANSACTIONS.decode(data)

    def open_in(self, key: _Key, name: str, producer_id: int) -> Any:
        folded = self.world.folded[shard_of(name, len(self.world.logs), key[1])]
        return OPEN_TRANSACTIONS.get(folded.rows.get, key, producer_id)

    def queue_id(self, name: str) -> QueueId | None:
        queue = self.world.plain.names.get(name)
        return None if queue is None else QueueId(queue.queue_id)

    async def make_queue(self, life: Life, name: str) -> None:
        values = {"name": name, "partitions": _PARTITIONS, "configs": {}}
        shards = len(self.world.logs)
        ids = QueueIds(shards, life.now_ms, self.rng.getrandbits)
        queue_id = ids.new(ShardId(shard_of(name, shards)))
        with anyio.move_on_after(3.0):
            envelope = command(Kind.CREATE, queue_id, values=values)
            await outcomes_of([life.command_router.submit(name, envelope)])


class TxnLife:
    """One life of a client."""

    def __init__(self, clients: TxnClients, name: str, number: int) -> None:
        self.clients, self.world, self.truth = clients, clients.world, clients.truth
        self.name, self.label = name, f"{name}.{number}"
        self.ended = anyio.Event()
        self._rng = clients.rng
        self._version = self._rng.choice((1, 2))
        self._steady = self._rng.random() < 0.7
        self._patience_s = self._rng.choice((1.0, 2.5, 6.0))
        self._timeout_s = self._rng.choice((3.0, 8.0, 15.0))
        self._pid = self._epoch = -1
        self._sequences: dict[_Key, int] = {}
        self._added: set[Any] = set()
        self._asked_again = False
        self._unsure = False  # whether something of this epoch may still come late
        self._connections: dict[str, Connection] = {}

    async def run(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await self.begin()
                while True:
                    await self._transaction()
                    if self._rng.random() < 0.1:
                        await anyio.sleep(self._rng.random() * 4)
        except Over:
            pass
        finally:
            self.ended.set()

    # -- asking

    async def _ask(
        self, life: Life | None, api: ApiKey, version: int, body: Any, handler: Handler
    ) -> Any:
        """Return the answer; None where it is not known."""
        if life is None or not life.began:
            await anyio.sleep(0.2)
            return None
        connection = self._connections.setdefault(f"{life.name}.{life.writer}", Connection())
        header = RequestHeader(api, version, 0, self.label, 0)
        request = Request(header=header, body=body, next_request=connection)
        claims = {shard.shard: shard.claim_offset for shard in life.shards.all()}

        async def arrive(worker: Worker) -> Any:
            await anyio.sleep(self.world.delay())
            late = self.world.conditions.requests_late
            if self.world.dice(late * (_ENDS_LATE if api == ApiKey.END_TXN else 1)):
                await anyio.sleep(_LATE_S * self._rng.random())
            now = {shard.shard: shard.claim_offset for shard in life.shards.all()}
            if connection.given_up and now != claims:
                return None  # a connection forgets answers when a shard moves
            answer = await handler(worker, request)
            await anyio.sleep(self.world.delay())
            return answer

        answer = None
        with anyio.move_on_after(self._patience_s):
            answer = await life.call(arrive)
        if answer is None:
            connection.given_up = True
            self._connections.pop(f"{life.name}.{life.writer}", None)
            self._asked_again = True
        return answer

    async def _again(
        self, ask: Callable[[], Awaitable[Any]], times: int = 10**6
    ) -> tuple[Any, Code]:
        """(answer, code) of the last time. Raises Aborts where it never was known."""
        for _ in range(times):
            found = await ask()
            if found is not None and found[1] not in _AGAIN:
                return found[0], found[1]
            await anyio.sleep(0.02 + self._rng.random() * 0.3)
        self._unsure = True
        raise Aborts

    def _coordinator(self) -> Life | None:
        return self.clients.served(self.name)

    # -- its producer id and epoch

    async def begin(self) -> None:
        """Get a producer id and an epoch. Raises Over."""
        await self._init(-1, -1)

    async def _init(self, producer_id: int, epoch: int) -> None:
        body = SimpleNamespace(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch,
            transaction_timeout=timedelta(seconds=self._timeout_s),
        )  # fmt: skip

        async def ask() -> Any:
            got = await self._ask(
                self._coordinator(), ApiKey.INIT_PRODUCER_ID, 4, body, transactions.init
            )
            return got and (got, got["error_code"])

        answer, code = await self._again(ask)
        if code:
            raise Over
        self._take(answer)
        now = anyio.current_time()
        self.truth.begins(self.name, self.label, (self._pid, self._epoch), now)
        self._unsure = False

    def _take(self, answer: Any) -> None:
        given = answer["producer_id"], answer["producer_epoch"]
        self.truth.given(self.name, self.label, *given)
        if given != (self._pid, self._epoch):
            self._sequences.clear()
        self._pid, self._epoch = given

    # -- one transaction

    async def _transaction(self) -> None:
        if not self._steady:
            self._version = self._rng.choice((1, 2))
        now = anyio.current_time()
        told = self.truth.open(self.name, self.label, (self._pid, self._epoch), now)
        self._added, self._asked_again = set(), False
        commit = self._rng.random() < 0.7
        try:
            for _ in range(self._rng.randint(1, 4)):
                if self._rng.random() < 0.3:
                    await self._offsets(told)
                else:
                    await self._write(told)
                if self._rng.random() < 0.05:
                    await anyio.sleep(1.3 * self._timeout_s)
        except Aborts:
            commit = False
        if told.asked:
            await self._end(told, commit=commit)
        if self._unsure:
            await self._init(self._pid, self._epoch)

    async def _add(self, participant: Any, api: ApiKey, body: Any, handler: Handler) -> None:
        if participant in self._added:
            return

        async def ask() -> Any:
            got = await self._ask(self._coordinator(), api, 3, body, handler)
            if got is None or "error_code" in got:
                return got and (got, got["error_code"])
            parts = got["results_by_topic_v3_and_below"][0]["results_by_partition"]
            return got, parts[0]["partition_error_code"]

        _, code = await self._again(ask, _TRIES)
        if code:
            raise Aborts
        self._added.add(participant)

    async def _write(self, told: Told) -> None:
        name = self._rng.choice(QUEUES)
        index = self._rng.randrange(_PARTITIONS)
        queue_id = self.clients.queue_id(name)
        life = self.clients.served(name, index)
        if queue_id is None or life is None or not life.began:
            if life is not None and life.began and queue_id is None:
                await self.clients.make_queue(life, name)
            return
        told.asked = True
        key = (queue_id, index)
        if self._version == 1:
            topic = SimpleNamespace(name=name, partitions=[index])
            body = SimpleNamespace(
                v3_and_below_topics=[topic], v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self._pid, v3_and_below_producer_epoch=self._epoch,
            )  # fmt: skip
            add = transactions.add_partitions
            await self._add((name, index), ApiKey.ADD_PARTITIONS_TO_TXN, body, add)
        sequence = self._sequences.get(key, 0)
        serial = self.clients.serial()
        values = [b"%s-%d-%d" % (self.name.encode(), serial, i) for i in range(2)]
        records = batch(
            *values, producer_id=self._pid, epoch=self._epoch, sequence=sequence,
            attributes=_TRANSACTIONAL, times=(_TIME_MS,) * len(values),
        )  # fmt: skip
        told.sent += values
        _, code = await self._again(partial(self._produce, name, index, records), _TRIES)
        if code:
            self._check_refusal(told, name, key, code)
            self._unsure = True
            raise Aborts
        self._sequences[key] = sequence + len(values)
        told.written.append((key, values))

    async def _produce(self, name: str, index: int, records: bytes) -> Any:
        version = 12 if self._version == 2 else 11
        topic = Topic(name, [(index, memoryview(records))])
        body = ProduceRequest(self.name, -1, [topic])
        life = self.clients.served(name, index)
        got = await self._ask(life, ApiKey.PRODUCE, version, body, _produced)
        if got is None:
            return None
        _, decoded = decode_response(ApiKey.PRODUCE, version, struct.pack(">iB", 0, 0) + got)
        answer = decoded.responses[0].partition_responses[0]
        return answer, Code(int(answer.error_code))

    def _check_refusal(self, told: Told, name: str, key: _Key, code: Code) -> None:
        """Check that no participant is refused, unless it has ended or been fenced.

        With KIP-890 a BEGIN may be lost on its way, and what comes behind it not.
        """
        row = self.clients.row(self.name)
        if row is None or not self.clients.reliable:
            return
        mine = (row.producer_id, row.epoch) == (self._pid, self._epoch)
        ongoing = mine and row.state == TransactionState.ONGOING
        if ongoing and code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.world.fault("what comes next in sequence is refused")
        if ongoing and code in _NO_PART and self._version == 1:
            shard = shard_of(name, len(self.world.logs), key[1])
            listed = transaction_rows.participant_key(row.number, Participant(shard, key))
            folded = self.world.folded[shard_of(self.name, len(self.world.logs))]
            if listed in folded.rows and row.start_ms + row.timeout_ms > row.update_ms:
                self.world.fault(f"{self.label}: what takes part is refused: {code.name}")

    async def _offsets(self, told: Told) -> None:
        group, number = self._rng.choice(GROUPS), IDS.index(self.name)
        name, index = QUEUES[number // _PARTITIONS], number % _PARTITIONS
        queue_id = self.clients.queue_id(name)
        if queue_id is None:
            return
        told.asked = True
        producer = {"producer_id": self._pid, "producer_epoch": self._epoch}
        body = SimpleNamespace(transactional_id=self.name, group_id=group, **producer)
        if self._version == 1:
            await self._add(group, ApiKey.ADD_OFFSETS_TO_TXN, body, transactions.add_offsets)
        offset = self.clients.serial()
        part = SimpleNamespace(
            partition_index=index, committed_offset=offset, committed_metadata="",
            committed_leader_epoch=-1,
        )  # fmt: skip
        body.topics = [SimpleNamespace(name=name, partitions=[part])]
        version, asked_before = (5 if self._version == 2 else 4), self._asked_again
        self._asked_again = False
        told.committing.append((group, (queue_id, index), offset))

        async def ask() -> Any:
            life = self.clients.served(group)
            commit = transaction_offsets.commit
            got = await self._ask(life, ApiKey.TXN_OFFSET_COMMIT, version, body, commit)
            return got and (got, got["topics"][0]["partitions"][0]["error_code"])

        _, code = await self._again(ask, _TRIES)
        # Without KIP-890 one that comes late might take part in the next transaction.
        self._unsure |= self._asked_again and self._version == 1
        self._asked_again |= asked_before
        if code:
            self._unsure = True
            raise Aborts
        told.offsets.append((group, (queue_id, index), offset))

    async def _end(self, told: Told, *, commit: bool) -> None:
        version = 5 if self._version == 2 else 3
        body = SimpleNamespace(
            transactional_id=self.name, producer_id=self._pid, producer_epoch=self._epoch,
            committed=commit,
        )  # fmt: skip
        self._asked_again = False
        asked: list[float] = []

        async def ask() -> Any:
            if commit:
                told.fate = Fate.UNKNOWN
            asked.append(anyio.current_time())
            got = await self._ask(
                self._coordinator(), ApiKey.END_TXN, version, body, self._ended_in_time(told)
            )
            unsaid = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)
            self._asked_again |= got is not None and got["error_code"] in unsaid
            return got and (got, got["error_code"])

        answer, code = await self._again(ask)
        if code and commit:
            if not self._asked_again:
                told.fate = Fate.ABORTED
            raise Over
        if code in _FENCED:
            raise Over
        if code:
            self._unsure = True  # nothing was open
            return
        if commit:
            told.fate = Fate.COMMITTED
        if version >= 5:
            self._take(answer)

    def _ended_in_time(self, told: Told) -> Handler:
        """Return EndTxn; unless it waited for too long, all participants are told."""
        producer_id, number = self._pid, self._number()

        def claim(worker: Worker) -> int:
            shard = worker.routes.serving(shard_of(self.name, worker.routes.shards))
            return -1 if shard is None else shard.claim_offset

        async def end(worker: Worker, request: Request) -> Any:
            began, before = anyio.current_time(), claim(worker)
            answer = await transactions.end(worker, request)
            stayed = before == claim(worker)
            waited = anyio.current_time() - began > _WAITED_S
            if not answer["error_code"] and stayed and not waited:
                for name, key in self._still_open(told, producer_id, number):
                    self.world.fault(f"answered while {name} {key} is open")
            return answer

        return end

    def _number(self) -> int | None:
        row = self.clients.row(self.name)
        return row.number if row and row.state == TransactionState.ONGOING else None

    def _still_open(
        self, told: Told, producer_id: int, number: int | None
    ) -> Iterator[tuple[str, _Key]]:
        if number is None or not self.clients.reliable:
            return
        for key, _ in told.written:
            name = self.world.plain.ever[bytes(key[0])]
            opened = self.clients.open_in(key, name, producer_id)
            if opened is not None and opened.number == number and opened.first_offset >= 0:
                yield name, key


async def _produced(worker: Worker, request: Request) -> bytes:
    """Produce as a connection does."""
    call = produce.append(worker, request.version, request.body)
    if call is None:
        return await produce.handle(worker, request)
    done = anyio.Event()
    call.add_done_callback(done.set)
    await done.wait()
    return call.body() or b""
