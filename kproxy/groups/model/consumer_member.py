"""A member of a consumer group (KIP-848)."""

import copy
from typing import ClassVar

from kproxy.groups.model.revoking_member import RevokingMember

STATIC_LEAVE_EPOCH = -2
"""Epoch of a static member that has left and may be back."""


class ConsumerMember(RevokingMember):
    """A member that may speak the classic protocol still."""

    FIELDS: ClassVar[tuple[str, ...]] = (
        *RevokingMember.FIELDS, "instance", "regex", "assignor", "session_s",
    )  # fmt: skip

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.assignor: str | None = None
        self.session_s = 0.0  # it has its own while it speaks the classic protocol

    @property
    def classic(self) -> bool:
        return bool(self.protocols)

    def copy(self, member_id: str) -> "ConsumerMember":
        """Return the same under another id, with no time set."""
        made = copy.copy(self)
        made.id, made.deadline, made.revoke_by = member_id, 0.0, None
        return made
