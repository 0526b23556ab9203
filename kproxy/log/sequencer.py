"""The order of a shared log's envelopes: ours from memory, others' from the log.

Many workers append to a shared log (a partition of Kafka's data topic), and Kafka alone decides
the order. Every worker must apply the same envelopes at the same log offsets. Reading everything
back would cost each envelope twice, so the sequencer applies our own envelopes from memory:

- `sent` keeps an envelope that is on its way.
- `reported` takes a delivery report, which names the offset of one of ours. If that is the next
  offset, the envelope is applied at once, and so are those of ours that follow without a gap.
- If it is further on, another worker wrote in between. `gap` is then true, the log reader reads
  the missing offsets, and `read` applies them.
- A read envelope may be one of ours. Its writer id and counter say which, so the report and the
  reader may come in either order; the later one changes nothing.
- An envelope may be in the log twice, where the client library sent it again and could not tell.
  The report names the second copy. The first one that is read settles it, and the second is read;
  the fold gives it no effect (`virtual.writers`).

The log is append-only. A report below the next offset, a read that leaves a gap, or another
envelope where ours was reported means that the log was truncated: LogChanged, and the copy is
rebuilt.

No I/O: the caller sends, reads and applies.
"""

from typing import NamedTuple

from kproxy.virtual.commands.envelope import Envelope


class Applied(NamedTuple):
    """One envelope whose turn it is. `counter`: ours, with someone waiting for its outcome."""

    offset: int
    envelope: Envelope
    counter: int | None


class LogChanged(Exception):
    """The log does not go on from what was applied: it was truncated, or has a gap. Rebuild.

    `at`: a log offset at which it lacks what was applied there, if one is known.
    """

    def __init__(self, reason: str, at: int | None = None) -> None:
        super().__init__(reason)
        self.at = at


class Sequencer:
    """The order of one shard's log, from `next_offset` on."""

    def __init__(self, writer: int, next_offset: int) -> None:
        self._writer = writer
        self.next_offset = next_offset
        self._sent: dict[int, Envelope] = {}
        self._landed: dict[int, int] = {}  # offset -> counter, beyond next_offset

    def sent(self, envelope: Envelope) -> None:
        """Note an envelope on its way, with our writer id and its counter in it."""
        self._sent[envelope.counter] = envelope

    def reported(self, counter: int, offset: int) -> list[Applied]:
        """Take a delivery report; return the envelopes that may be applied now.

        Raises LogChanged.
        """
        if counter not in self._sent:
            return []  # the reader was first, or nobody waits for it any more
        if offset < self.next_offset:
            raise LogChanged(
                f"an envelope landed at {offset}, where another was already applied:"
                " the log was truncated",
                offset,
            )
        self._landed[offset] = counter
        return self._take_landed()

    def unreported(self, counter: int) -> None:
        """Forget an envelope of unknown fate that nobody waits for; if it landed, the reader brings
        it.
        """
        self._sent.pop(counter, None)

    def read(self, offset: int, envelope: Envelope) -> list[Applied]:
        """Take an envelope of the log; return the envelopes that may be applied now.

        Raises LogChanged.
        """
        if offset < self.next_offset:
            return []  # applied from memory before
        if offset > self.next_offset:
            raise LogChanged(f"the log goes on at {offset}, {self.next_offset} is missing")
        landed, ours = self._landed.pop(offset, None), envelope.writer == self._writer
        if landed is not None and not (ours and envelope.counter == landed):
            raise LogChanged(f"offset {offset} holds another envelope than was reported there")
        mine = envelope.counter if ours and envelope.counter in self._sent else None
        if mine is not None:
            del self._sent[mine]
        self.next_offset += 1
        return [Applied(offset, envelope, mine), *self._take_landed()]

    def read_all(self, records: list[tuple[int, Envelope]]) -> list[Applied]:
        """Do as `read` for each in turn; at once where nothing of ours is under way."""
        first, last = records[0][0], records[-1][0]
        ours = self._sent or self._landed
        if ours or first != self.next_offset or last - first != len(records) - 1:
            return [one for record in records for one in self.read(*record)]
        self.next_offset = last + 1
        return [Applied(offset, envelope, None) for offset, envelope in records]

    def _take_landed(self) -> list[Applied]:
        taken = []
        while (counter := self._landed.pop(self.next_offset, None)) is not None:
            envelope = self._sent.pop(counter, None)
            if envelope is None:
                break  # its first copy was read; this one is read, too
            taken.append(Applied(self.next_offset, envelope, counter))
            self.next_offset += 1
        return taken

    @property
    def gap(self) -> bool:
        """Whether something of ours landed beyond what is applied: the log must be read now."""
        return bool(self._landed)

    @property
    def landed_through(self) -> int:
        """The offset behind the first of ours that waits for a gap to be read."""
        return min(self._landed, default=self.next_offset)

    @property
    def waiting(self) -> int:
        """The number of ours on their way."""
        return len(self._sent)
