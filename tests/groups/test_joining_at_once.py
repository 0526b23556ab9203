"""Members that join while what another does is on its way to the log."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.consumer_protocol import encode_subscription
from kproxy.groups.requests import classic_protocol, heartbeat
from kproxy.log.base import Ticket
from kproxy.virtual.commands.envelope import Envelope
from tests.groups.rules import coordinator_without_worker
from tests.groups.test_classic_protocol import NEW
from tests.groups.test_heartbeat import JOIN


class HeldLog:
    """A log that takes nothing until `release`."""

    def __init__(self, patch: pytest.MonkeyPatch, coordinator: Coordinator) -> None:
        self._held: list[Ticket] = []
        self._append = coordinator.shard.append
        patch.setattr(coordinator.shard, "append", self._hold)

    def _hold(self, envelopes: Sequence[Envelope]) -> Ticket:
        self._held.append(Ticket(list(envelopes)))
        return self._held[-1]

    def release(self) -> None:
        held, self._held = self._held, []
        for ticket in held:
            ticket.set_outcomes(self._append(ticket.envelopes).outcomes())


async def test_a_classic_member_does_not_drop_a_first_consumer_that_joins_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: it waited for the log, found that there had been no members, and made a new group."""
    coordinator = coordinator_without_worker()
    log, answers = HeldLog(monkeypatch, coordinator), list[Any]()
    asked = replace(NEW, protocols=(("range", encode_subscription(["q"])),))

    async def join() -> None:
        answers.append(await classic_protocol.join(coordinator, asked))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heartbeat.heartbeat, coordinator, JOIN)
        tasks.start_soon(join)
        for _ in range(5):
            await checkpoint()
        while not answers:
            log.release()
            await checkpoint()
            coordinator.timers.run_due(coordinator.now())
    group = coordinator.find("g")
    assert group is not None
    assert group.kind == "consumer"
    assert sorted(group.members) == ["a", answers[0]["member_id"]]
