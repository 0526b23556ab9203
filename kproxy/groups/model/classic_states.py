"""States of a classic group, and the answers its members get."""

from enum import StrEnum
from typing import Any

from kproxy.common.errors import Code


class State(StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


def join_answer(code: Code, member_id: str) -> dict[str, Any]:
    """Return a JoinGroupResponse's fields without a generation."""
    return {
        "error_code": code,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": "",
        "leader": "",
        "skip_assignment": False,
        "member_id": member_id,
        "members": (),
    }


def sync_answer(code: Code) -> dict[str, Any]:
    """Return a SyncGroupResponse's fields without an assignment."""
    return {"error_code": code, "protocol_type": None, "protocol_name": None, "assignment": b""}
