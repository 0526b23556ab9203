"""Queues written down as plainly as possible: what the fold must agree with."""

from dataclasses import dataclass, field

from kproxy.common.errors import Code
from kproxy.protocol.batch import read_header
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.records import AppendIf
from tests.commands import values_of


@dataclass
class PlainPartition:
    start: int = 0
    records: list[bytes] = field(default_factory=list)  # the batch body, once for each record
    sent: dict[int, tuple[int, list[tuple[int, int, int]]]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.records)


class Model:
    """A list of records for each partition; outcomes as (code, number)."""

    def __init__(self) -> None:
        self.names: dict[str, bytes] = {}
        self.partitions: dict[bytes, list[PlainPartition]] = {}
        self.commits: dict[tuple[str, bytes, int], int] = {}
        self.count = 0

    def apply(self, envelope: Envelope) -> tuple[Code, int | None]:
        here, self.count = self.count, self.count + 1
        queue, index = envelope.queue_id, envelope.partition
        match envelope.kind:
            case Kind.CREATE:
                values = values_of(envelope)
                if values["name"] in self.names:
                    return Code.TOPIC_ALREADY_EXISTS, None
                self.names[values["name"]] = queue
                self.partitions[queue] = [PlainPartition() for _ in range(values["partitions"])]
                return Code.NONE, None
            case Kind.PRODUCER_ID:
                return Code.NONE, here
            case Kind.COMMIT:
                values = values_of(envelope)
                for hex_id, part, offset, _, _, _ in values["offsets"]:
                    if part < len(self.partitions.get(bytes.fromhex(hex_id), [])):
                        self.commits[values["group"], bytes.fromhex(hex_id), part] = offset
                return Code.NONE, None
            case Kind.DELETE_OFFSETS:
                values = values_of(envelope)
                for hex_id, part in values["partitions"]:
                    self.commits.pop((values["group"], bytes.fromhex(hex_id), part), None)
                return Code.NONE, None
        if queue not in self.partitions:
            return Code.UNKNOWN_TOPIC_ID, None
        parts = self.partitions[queue]
        if envelope.kind == Kind.GROW:
            if envelope.number <= len(parts):
                return Code.INVALID_PARTITIONS, None
            parts += [PlainPartition() for _ in range(envelope.number - len(parts))]
            return Code.NONE, None
        if envelope.kind == Kind.DELETE:
            del self.partitions[queue]
            self.names = {n: q for n, q in self.names.items() if q != queue}
            return Code.NONE, None
        if index >= len(parts):
            return Code.UNKNOWN_TOPIC_ID, None
        part = parts[index]
        if envelope.kind == Kind.TRIM:
            start = part.end if envelope.number == -1 else envelope.number
            if not 0 <= start <= part.end:
                return Code.OFFSET_OUT_OF_RANGE, None
            part.start = max(part.start, start)
            return Code.NONE, part.start
        if envelope.kind == Kind.APPEND_IF:
            body = bytes(AppendIf.batch_of(envelope))
            return self.append(part, body, AppendIf.end_of(envelope))
        assert envelope.kind == Kind.APPEND
        return self.append(part, envelope.body)

    def forget(self, queue: bytes, index: int, producer_id: int) -> None:
        """Forget a producer that was not used for long."""
        parts = self.partitions.get(queue, [])
        if index < len(parts):
            parts[index].sent.pop(producer_id, None)

    def append(
        self, part: PlainPartition, body: bytes, expected: int | None = None
    ) -> tuple[Code, int | None]:
        header = read_header(body)
        pid, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        count, base = header.record_count, part.end
        if pid >= 0:
            known_epoch, batches = part.sent.get(pid, (-1, []))
            if epoch < known_epoch:
                return Code.INVALID_PRODUCER_EPOCH, None
            if epoch > known_epoch and known_epoch >= 0 and first != 0:
                return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, None
            if epoch == known_epoch:
                for old_first, old_count, old_base in batches[-5:]:
                    if (old_first, old_count) == (first, count):
                        return Code.NONE, old_base
                if first != batches[-1][0] + batches[-1][1]:
                    return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, None
        if expected not in (None, base):
            return Code.INVALID_RECORD, None
        if pid >= 0:
            if epoch == known_epoch:
                batches.append((first, count, base))
            else:
                part.sent[pid] = (epoch, [(first, count, base)])
        part.records += [body] * count
        return Code.NONE, base
