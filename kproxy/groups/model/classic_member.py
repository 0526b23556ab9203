"""A member of a classic group, and what waits for its answer."""

from typing import Any, Generic, TypeVar

import anyio

Answer = TypeVar("Answer")


class Promise(Generic[Answer]):
    """One answer that is not there yet; the first `set` counts."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._value: Answer | None = None

    def set(self, value: Answer) -> None:
        if not self._event.is_set():
            self._value = value
            self._event.set()

    async def wait(self) -> Answer:
        await self._event.wait()
        assert self._value is not None
        return self._value


Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) as a member prefers them."""


class ClassicMember:
    """Times are seconds; `deadline` is when it is gone unless it is heard of."""

    __slots__ = (
        "assignment", "client_id", "deadline", "host", "id", "instance", "joined", "new",
        "protocols", "rebalance_s", "session_s", "synced",
    )  # fmt: skip

    def __init__(
        self,
        member_id: str,
        instance: str | None,
        client_id: str,
        host: str,
        session_s: float,
        rebalance_s: float,
        protocols: Protocols,
    ) -> None:
        self.id = member_id
        self.instance = instance
        self.client_id = client_id
        self.host = host
        self.session_s = session_s
        self.rebalance_s = rebalance_s
        self.protocols = protocols
        self.assignment = b""
        self.joined: Promise[dict[str, Any]] | None = None
        self.synced: Promise[dict[str, Any]] | None = None
        self.new = False  # it cannot send heartbeats before its first answer
        self.deadline = 0.0

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    def answer_join(self, answer: dict[str, Any]) -> None:
        if self.joined is not None:
            self.joined.set(answer)
            self.joined = None

    def answer_sync(self, answer: dict[str, Any]) -> None:
        if self.synced is not None:
            self.synced.set(answer)
            self.synced = None

    def row(self, generation: int) -> dict[str, Any]:
        return {"epoch": generation} | {name: getattr(self, name) for name in _FIELDS}


_FIELDS = (
    "instance", "client_id", "host", "session_s", "rebalance_s", "protocols", "assignment",
)  # fmt: skip
"""The attributes that a member's row has."""


def member_from_row(member_id: str, row: dict[str, Any]) -> ClassicMember:
    """Return a member as its row has it."""
    member = ClassicMember(member_id, *(row[name] for name in _FIELDS[:-1]))
    member.protocols, member.assignment = tuple(member.protocols), row["assignment"]
    return member
