"""A router that sends commands to shards of other workers, and answers from published outcomes.

Any worker may append to any log. The owner of the shard folds the command and publishes the
outcome in the queues topic. The worker that sent the command answers its client with that outcome.
"""

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import structlog

from kproxy.cluster.announcer import Announcer, ClusterContext, serves
from kproxy.cluster.catalogue.cache import Tombstone, announced, announcement, outcome_key
from kproxy.cluster.partition_assigner import PartitionAssigner
from kproxy.cluster.row_announcer import RowAnnouncer
from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.loop.callbacks import after, nothing
from kproxy.loop.pace import scanned
from kproxy.loop.pulse import pulse
from kproxy.metadata.levels import ABOVE_LEVEL
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.access import Secure
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.traits import TRAITS
from kproxy.virtual.commands.transactions import ASKS_ONLY, SETS_CLOCK, Enlist
from kproxy.virtual.folds.route_definitions import ROUTE_SETTINGS
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.access import SECURITY_SHARD
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import QueueId

_log = structlog.get_logger()

_DELETING = (Kind.DELETE, Kind.EXPIRE_QUEUE)
_WAIT_S = 10.0
_AGAIN_S = 1.0
_RECENT_MS = 600_000  # nobody waits for older ones; clocks of machines differ by less, mostly
_CLOCKS_MS = 1000  # by which workers' clocks may differ before it matters
_UNANSWERED_MAX = 500  # commands folded while catching up

AnswerCallback = Callable[[Outcome], None]
_Folded = tuple[int, Envelope, Outcome]


def _told_of(envelope: Envelope, outcome: Outcome) -> QueueId:
    """Return the queue that other shards are to be told about."""
    if envelope.kind == Kind.ROUTE and outcome.queue is not None:
        return outcome.queue.queue_id
    return envelope.queue_id


def _is_answered(envelope: Envelope) -> bool:
    """Whether the worker that sent a command waits for what its owner decides."""
    if envelope.kind == Kind.MARKER and not envelope.number:
        # A command about partitions alone: it is durable, and that is all there is to say
        return False
    return TRAITS[Kind(envelope.kind)].answered_across_workers


def _left(ticket: Ticket) -> bool:
    """Return whether the shard left before the one envelope of a ticket was applied."""
    code = ticket.outcomes()[0].code if ticket.error is None else ticket.error.code
    return code == Code.NOT_LEADER_OR_FOLLOWER


class CommandRouter:
    """The commands that this worker sent to other shards, and its decisions for others."""

    def __init__(self, context: ClusterContext, now_ms: Callable[[], int]) -> None:
        self._link = context.link
        self._shards = context.shards
        self._serving = context.serving
        self._tasks = context.tasks
        self._level = context.level
        self._now_ms = now_ms
        self._waiting: dict[int, tuple[Ticket, float]] = {}  # by counter, until when
        self._awaiting_ready: dict[
            int, dict[QueueId, list[tuple[int, AnswerCallback]]]
        ] = {}  # by shard
        self._unanswered: dict[int, deque[_Folded]] = {}  # by shard
        self.announcer = Announcer(context)
        self._groups = RowAnnouncer(context, context.cache.groups)
        self._security = RowAnnouncer(context, context.cache.security)
        self._assigner = PartitionAssigner(context, self._ask, now_ms)

    # -- asking

    def submit(self, name: str, envelope: Envelope) -> Ticket:
        """Put a command in line in the home shard of queue `name`."""
        return self._ask(shard_of(name, self._shards), envelope, landed=True)

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        """Append a command to a shard's log: settled with what its owner's fold decides.

        A SECURE command is settled once every worker can know it.
        """
        asked_by_client = envelope.kind in (Kind.SECURE, Kind.CONFIGURE_GROUP)
        return self._ask(index, envelope, landed=asked_by_client)

    def _ask(self, index: int, envelope: Envelope, *, landed: bool = False) -> Ticket:
        """Append a command, and settle it with its outcome.

        `landed`: the shard's final owner decides, as a real broker asks the controller again. A
        shard that leaves meanwhile is no answer.
        """
        shard = self._serving(index)
        if landed:
            envelope.time_ms = self._now_ms()  # whether anybody waits still
        if shard is not None:
            ticket = shard.append([envelope])
            if not landed or (ticket.done and not _left(ticket)):
                return ticket
            if not ticket.done:
                if not self._answered_later(envelope):
                    ticket.add_done_callback(partial(self._decided_here, ticket))
                return self._wait_for(Ticket([envelope]))
        if not self._level.admits([envelope]):
            refused = Ticket([envelope])
            refused.set_error(KafkaError(Code.UNSUPPORTED_VERSION, ABOVE_LEVEL))
            return refused
        envelope.time_ms = self._now_ms()
        envelope.writer, envelope.counter = self._link.writer, self._link.next_counter()
        ticket = self._wait_for(Ticket([envelope]))
        try:
            self._link.send(index, envelope)
        except KafkaError as error:
            self._resolve(envelope.counter, Outcome(error.code, message=error.message))
        return ticket

    def _decided_here(self, ticket: Ticket) -> None:
        """Answer with what the fold has decided; where the shard left first its next owner does."""
        if not _left(ticket):
            error = ticket.error
            told = Outcome(error.code, message=error.message) if error else ticket.outcomes()[0]
            self._resolve(ticket.envelopes[0].counter, told)

    def _answered_later(self, envelope: Envelope) -> bool:
        """Whether more than the fold is waited for.

        The announcement of a deletion, or of what SECURE says; that other shards are told of
        partitions, where there may be some: not for a queue of one.
        """
        if envelope.kind == Kind.CREATE:
            if ROUTE_SETTINGS in envelope.body:
                return True
            return CreateQueue.decode(envelope).partitions > 1
        kinds = (Kind.GROW, Kind.DELETE, Kind.CONFIGURE, Kind.ROUTE, Kind.SECURE)
        return envelope.kind in kinds

    def _wait_for(self, ticket: Ticket) -> Ticket:
        self._waiting[ticket.envelopes[0].counter] = (ticket, anyio.current_time() + _WAIT_S)
        return ticket

    def _resolve(self, counter: int, outcome: Outcome) -> None:
        waiting = self._waiting.pop(counter, None)
        if waiting is not None:
            waiting[0].set_outcomes([outcome])

    def unfollowed(self, counter: int, offset: int | None) -> None:
        """Take a delivery report for a shard that is not followed here."""
        if offset is None:
            self._resolve(counter, Outcome(Code.REQUEST_TIMED_OUT))

    def published(self, counter: int, values: dict[str, Any]) -> None:
        """Settle a command of ours with the decision of another shard's owner."""
        queue = values.get("queue")
        self._resolve(
            counter,
            Outcome(
                Code(values["code"]),
                int(values["number"]),
                message=values.get("message"),
                numbers=tuple(values.get("numbers", ())),
                queue=None if queue is None else announced(queue["name"], queue["row"].encode()),
            ),
        )

    async def expire(self) -> None:
        """Answer what was never decided with an error that clients retry."""
        while True:
            await pulse(_AGAIN_S)
            self.announcer.say_lost()
            self._groups.say_lost()
            self._security.say_lost()
            now = anyio.current_time()
            late = [counter for counter, (_, until) in self._waiting.items() if until < now]
            for counter in late:
                self._resolve(
                    counter,
                    Outcome(Code.REQUEST_TIMED_OUT, message="the queue's owner has not answered"),
                )

    # -- deciding

    def applied(self, shard: Shard, log_offset: int, envelope: Envelope, outcome: Outcome) -> None:
        """Handle a command that a shard served here folded."""
        if _is_answered(envelope):
            self._decided(shard, log_offset, envelope, outcome)
            if envelope.kind == Kind.ENLIST and not outcome.code:
                self._set_clock(shard, envelope)
        elif envelope.kind == Kind.QUEUE_READY:
            self._queue_ready(shard, log_offset, envelope, outcome)

    def _set_clock(self, shard: Shard, envelope: Envelope) -> None:
        """Have a transaction time out by its coordinator's clock: another worker's may be wrong."""
        now_ms = self._now_ms()
        if envelope.writer == self._link.writer or abs(now_ms - envelope.time_ms) < _CLOCKS_MS:
            return
        asked = Enlist.decode(envelope)
        if asked.version != ASKS_ONLY:
            told = asked._replace(version=SETS_CLOCK, participants=(), time_ms=now_ms)
            shard.append([told.envelope()])

    def _queue_ready(
        self, shard: Shard, log_offset: int, envelope: Envelope, outcome: Outcome
    ) -> None:
        """Answer for a queue that all shards were told of; not where there is more to tell by now.

        A refusal by another shard is answered at once.
        """
        queue_id, refused = envelope.queue_id, bool(outcome.code)
        queue = shard.state.queue_by_id(queue_id)
        if outcome.queue is not None:
            gone = Tombstone(log_offset, queue_id) if queue is None else None
            self.announcer.announce(shard, outcome.queue.name, None, gone)
        waiting = self._awaiting_ready.get(shard.shard, {})
        if queue_id not in waiting:
            return
        if shard.state.get(rows.pending_assignment_key(queue_id)) is not None and not refused:
            return
        told = outcome._replace(queue=None) if refused else Outcome(Code.NONE, queue=queue)
        later = []
        for asked_at, answer in waiting.pop(queue_id):
            if asked_at <= envelope.number:
                answer(told)
            else:
                later.append((asked_at, answer))
        if later and refused:
            waiting[queue_id] = later

    def folded(self, shard: Shard, log_offset: int, envelope: Envelope, outcome: Outcome) -> None:
        """Note a command that a shard not served here, or not yet, folded: its owner answers.

        If there was no owner, its sender is answered when the shard is served here.
        """
        if _is_answered(envelope):
            known = self._unanswered.setdefault(shard.shard, deque(maxlen=_UNANSWERED_MAX))
            known.append((log_offset, envelope, outcome))

    def left(self, index: int) -> None:
        """Forget a shard that is not served here any more."""
        self._awaiting_ready.pop(index, None)
        self._unanswered.pop(index, None)

    def _decided(self, shard: Shard, log_offset: int, envelope: Envelope, outcome: Outcome) -> None:
        """Announce what changed, see that other shards are told, and answer.

        A deletion is answered when every worker can know it: once it stands in the topic. So is
        SECURE: a ban holds, whichever worker dies. Another worker's command is answered in the
        topic as well, behind the announcement.
        """
        answer = self._answer_to(envelope)
        deleted = envelope.kind in _DELETING and not outcome.code
        then = partial(answer, outcome) if deleted and answer is not None else None
        if not outcome.code and outcome.queue is not None and envelope.kind != Kind.ROUTE:
            gone = Tombstone(log_offset, envelope.queue_id) if deleted else None
            self.announcer.announce(shard, outcome.queue.name, then, gone)
        for queue in outcome.made:
            self.announcer.announce(shard, queue.name)
        if envelope.kind == Kind.CONFIGURE_GROUP and not outcome.code:
            self._groups.announce(shard, ConfigureGroup.decode(envelope).group)
        if envelope.kind == Kind.SECURE and not outcome.code:
            told = partial(answer, outcome) if answer is not None else nothing
            self._announce_secured(shard, envelope, told)
            return
        assigning = self._has_pending_assignment(shard, log_offset, envelope, outcome)
        if assigning:
            self._assigner.drive(shard, _told_of(envelope, outcome))
        if answer is None or then is not None:
            return
        if assigning and not deleted:
            self._answer_when_ready(shard, _told_of(envelope, outcome), log_offset, answer)
        else:
            answer(outcome)

    def _announce_secured(self, shard: Shard, envelope: Envelope, then: Callable[[], None]) -> None:
        """Announce rows of security, and go on once all of them are in the topic."""
        names = list(Secure.decode(envelope).changes)
        one_more = after(len(names), then)
        for name in names:
            self._security.announce(shard, name, one_more)
        if not names:
            then()

    def _answer_to(self, envelope: Envelope) -> AnswerCallback | None:
        """Return the callback that answers a command's sender; None:

        it waits for the fold itself.
        """
        counter = envelope.counter
        if envelope.writer == self._link.writer:
            return (lambda o: self._resolve(counter, o)) if counter in self._waiting else None
        return lambda outcome: self._publish(envelope, outcome)

    def _has_pending_assignment(
        self, shard: Shard, log_offset: int, envelope: Envelope, outcome: Outcome
    ) -> bool:
        """Whether this command has left something to tell other shards."""
        queue = outcome.queue
        if outcome.code:
            return False
        if envelope.kind == Kind.CREATE and queue is not None and queue.wanted == 1:
            if ROUTE_SETTINGS not in envelope.body:
                return False
        work = shard.state.get(rows.pending_assignment_key(_told_of(envelope, outcome)))
        return work is not None and json.loads(work)["as_of"] == log_offset

    def _publish(self, envelope: Envelope, outcome: Outcome) -> None:
        queue = outcome.queue
        values: dict[str, Any] = {"code": outcome.code, "number": outcome.number}
        if outcome.message is not None:
            values["message"] = outcome.message
        if outcome.numbers:
            values["numbers"] = outcome.numbers
        if queue is not None:
            values["queue"] = {"name": queue.name, "row": announcement(queue).decode()}
        key = outcome_key(envelope.writer, envelope.counter)
        self._link.publish_queue(key, json.dumps(values).encode())
        self._link.publish_queue(key, None)  # nobody needs it later

    # -- beginning to serve

    def take_up(self, shard: Shard) -> None:
        """Announce, spread and answer what an earlier owner did not get to."""
        (shard.tasks or self._tasks).start_soon(self._take_up, shard, shard.claim_offset)

    async def _take_up(self, shard: Shard, claim: int) -> None:
        await self.announcer.take_up(shard, claim)
        await self._groups.take_up(shard, claim)
        if shard.shard == SECURITY_SHARD:
            await self._security.take_up(shard, claim)
        async for found in scanned(shard.kv.scan, *RowKind.PENDING_ASSIGNMENT.range()):
            for key, _ in found:
                if not serves(shard, claim):
                    return
                self._assigner.drive(shard, rows.queue_id_of(key))
        if not serves(shard, claim):
            return
        for log_offset, envelope, outcome in self._unanswered.pop(shard.shard, ()):
            self._answer_late(shard, log_offset, envelope, outcome)

    def _answer_late(
        self, shard: Shard, log_offset: int, envelope: Envelope, outcome: Outcome
    ) -> None:
        """Answer for a command that was folded before this worker served, if anyone may wait.

        If clocks differ by more than that, its client asks again and is answered then.
        """
        answer = self._answer_to(envelope)
        ours = envelope.writer == self._link.writer
        recent = abs(self._now_ms() - envelope.time_ms) <= _RECENT_MS
        if answer is None or not (ours or recent):
            return
        if envelope.kind == Kind.CONFIGURE_GROUP and not outcome.code:
            self._groups.announce(shard, ConfigureGroup.decode(envelope).group)
        if envelope.kind in _DELETING and outcome.queue is not None and not outcome.code:
            gone = Tombstone(log_offset, envelope.queue_id)
            self.announcer.announce(shard, outcome.queue.name, partial(answer, outcome), gone)
        elif envelope.kind == Kind.SECURE and not outcome.code:
            self._announce_secured(shard, envelope, partial(answer, outcome))
        elif self._has_pending_assignment(shard, log_offset, envelope, outcome):
            self._answer_when_ready(shard, _told_of(envelope, outcome), log_offset, answer)
        else:
            queue = shard.state.queue_by_id(envelope.queue_id) or outcome.queue
            answer(outcome._replace(queue=queue))

    def _answer_when_ready(
        self, shard: Shard, queue_id: QueueId, log_offset: int, answer: AnswerCallback
    ) -> None:
        waiting = self._awaiting_ready.setdefault(shard.shard, {})
        waiting.setdefault(queue_id, []).append((log_offset, answer))
