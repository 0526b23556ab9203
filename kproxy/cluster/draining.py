"""Hands a worker's shards to the others, so that it can stop and nobody waits.

The worker leaves Kafka's group, which gives its shards to the other members. It serves each shard
until another worker's CLAIM (`cluster.shard_owner`). Once all are claimed it may stop.
"""

from collections.abc import Awaitable, Callable, Collection

import anyio
import structlog

from kproxy.cluster.owned_shards import OwnedShards
from kproxy.common.errors import KafkaError

_log = structlog.get_logger()

_LOOK_S = 0.05
_ASK_S = 0.5
_AWAY_S = 5.0
_LINGER_S = 0.5  # clients ask it where their shards are now


class Draining:
    """The draining of one worker; once."""

    def __init__(
        self,
        shards: OwnedShards,
        leave: Callable[[], None],
        live: Callable[[], Awaitable[Collection[str]]],
        seconds: float,
    ) -> None:
        """Take `leave` (the group), `live` (its members) and `seconds`, which others have to take
        over.
        """
        self._shards = shards
        self._leave = leave
        self._live = live
        self._seconds = seconds
        self._alone = False
        self._away = False

    async def run(self, report: Callable[[int], None]) -> None:
        """Drain until others serve all shards, no other worker is left, or the time is over.

        `report` is called with the number of shards still served here, as that changes.
        """
        if not self._seconds:
            return
        began, all_ = anyio.current_time(), self._shards.all()
        _log.info("draining", shards=len(all_))
        self._leave()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_group)
            with anyio.move_on_after(self._seconds):
                await self._handed_over(report)
            tasks.cancel_scope.cancel()
        left = sorted(shard.shard for shard in self._shards.all())
        if not left:
            await anyio.sleep(_LINGER_S)
        _log.info(
            "drained", left=left, seconds=round(anyio.current_time() - began, 3),
            hint=self._hint(left),
        )  # fmt: skip

    def _hint(self, left: Collection[int]) -> str:
        if not left:
            return "others serve its shards"
        if self._alone:
            return "no other worker is there"
        if self._away:
            return "the cluster does not answer: others take its shards once it does"
        return "others take the rest once it has stopped; --drain-ms-max gives them more time"

    async def _handed_over(self, report: Callable[[int], None]) -> None:
        before = -1
        while (left := len(self._shards.all())) and not (self._alone or self._away):
            if left != before:
                report(left)
                before = left
            await anyio.sleep(_LOOK_S)
        report(left)

    async def _watch_group(self) -> None:
        """Find out that no other worker is there, that they all leave, or nobody can take over."""
        answered_at = anyio.current_time()
        while True:
            await anyio.sleep(_ASK_S)
            with anyio.move_on_after(_AWAY_S):
                try:
                    self._alone = not await self._live()
                    answered_at = anyio.current_time()
                except KafkaError as error:
                    _log.debug("members_not_known", reason=error.message)
            self._away = anyio.current_time() - answered_at > _AWAY_S
