"""Members of share groups by hand: what each asks is said by its `ShareCluster`, to be compared."""

import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.canonical import unheard
from tests.kafka.cluster import is_whole, name
from tests.kafka.shares.cluster import Part, ShareCluster
from tests.wire import Wire, batches

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)

Acks = dict[Part, list[tuple[Any, ...]]]
"""(first, last, *types) of each acknowledgement."""

WAIT_MS = 500  # for records that are to come: asked again until they do
NOT_LONG_MS = 150  # for no records
RENEWING: dict[str, Any] = {
    "records": 0, "batch_size": 0, "min_bytes": 0, "max_bytes": 0, "wait_ms": 0, "renew": True,
}  # fmt: skip
"""The fields of a fetch that does nothing but renew."""


class Sharer:
    """A member of a share group, and its session with each node."""

    def __init__(self, cluster: ShareCluster, group: str, member_id: str, *topics: str) -> None:
        self.cluster = cluster
        self.group = group
        self.id = member_id
        self.topics = topics
        self.epoch = 0
        self.parts: list[Part] = []
        self.sessions: dict[Wire, int] = {}
        self.got: dict[Part, list[tuple[int, int, int]]] = {}

    # -- membership

    def beat(self, *, by: int = 0, **changes: Any) -> "Sharer":
        """Send ShareGroupHeartbeat: all when it joins, then its epoch alone, or one off by so many.

        Epochs are said by how much they rose: how often a join raises them differs.
        """
        values: dict[str, Any] = {
            "group_id": self.group, "member_id": self.id, "member_epoch": self.epoch + by,
            "rack_id": None, "subscribed_topic_names": self.topics if not self.epoch else None,
        } | changes  # fmt: skip
        answer = self.cluster.coordinated(
            values["group_id"], ApiKey.SHARE_GROUP_HEARTBEAT, 1, values, key_type=0
        )
        code, before = answer.error_code, self.epoch
        shown = None
        if answer.assignment is not None:
            self.parts = sorted(
                (self.cluster.topic_name(topic.topic_id), partition)
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            )
            shown = [f"{topic}/{partition}" for topic, partition in self.parts]
        rose = str(answer.member_epoch)
        if code == 0:
            self.epoch = max(0, answer.member_epoch)
            if self.epoch:
                rose = f"+{self.epoch - before}" if before else "its first"
        interval = round(answer.heartbeat_interval.total_seconds() * 1000)
        asked = sorted((k, v) for k, v in changes.items() if v != self.id)
        self.cluster.say(
            f"beat {self.id} {'' if not by else f'at {by} '}{asked}",
            f"{name(code)} id {answer.member_id!r} epoch {rose} interval {interval} {shown}",
        )
        return self

    def silently(self, until: int | None = None) -> "Sharer":
        """Send heartbeats that are not said, until it has partitions, or as many as are named."""
        end = time.monotonic() + 20
        said = len(self.cluster.said)
        with unheard():
            while not self.parts if until is None else len(self.parts) != until:
                assert time.monotonic() < end, f"{self.id} of {self.group} has {self.parts}"
                self.beat()
                time.sleep(0.02)
            self.beat()
        del self.cluster.said[said:]
        return self

    def leave(self) -> "Sharer":
        self.beat(member_epoch=-1, subscribed_topic_names=None)
        self.epoch, self.parts = 0, []
        return self

    # -- records

    def fetch(
        self, *parts: Part, acks: Acks | None = None, forget: Iterable[Part] = (),
        epoch: int | None = None, version: int = 2, records: int = 500, batch_size: int = 500,
        wait_ms: int = WAIT_MS, min_bytes: int = 1, max_bytes: int = 50 << 20, mode: int = 0,
        renew: bool = False, at: Wire | None = None, **changes: Any,
    ) -> Any:  # fmt: skip
        """Send ShareFetch in the session with the first partition's leader, or with `at`."""
        asked: Acks = {part: [] for part in parts} | (acks or {})
        wire = at or self._wire((*asked, *forget))
        values: dict[str, Any] = {
            "group_id": self.group, "member_id": self.id,
            "share_session_epoch": self.sessions.get(wire, 0) if epoch is None else epoch,
            "max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes,
            "max_records": records, "batch_size": batch_size, "share_acquire_mode": mode,
            "is_renew_ack": renew, "topics": self._topics(asked),
            "forgotten_topics_data": self._forgotten(forget),
        } | changes  # fmt: skip
        self.got, said = {}, []
        end = time.monotonic() + 20
        answer = wire.call(ApiKey.SHARE_FETCH, version, values)
        while True:
            self._session(wire, values["share_session_epoch"], int(answer.error_code))
            failed = bool(answer.error_code)
            for key, part in self.parts_of(answer):
                self.got[key] = acquired(part, apart=mode == 0)
                failed |= bool(part.error_code)
                if self.got[key] or part.error_code or (acks or {}).get(key):
                    said.append(self._fetched(key, part))  # others come or not, as it happens
            if failed or any(self.got.values()) or wait_ms != WAIT_MS or time.monotonic() > end:
                break
            # A real Kafka that has just read the state may let the whole time go by.
            values |= {"topics": (), "forgotten_topics_data": ()}
            values["share_session_epoch"] = self.sessions[wire]
            with unheard():
                wire.send(ApiKey.SHARE_FETCH, version, values)
            answer = wire.receive(ApiKey.SHARE_FETCH, version)[1]
        rest = "".join(f" {k} {v}" for k, v in changes.items())
        self.cluster.say(
            f"fetch v{version} {self.id} {shown_acks(asked)}{rest} {epoch=} records {records} by "
            f"{batch_size} mode {mode}{' renew' if renew else ''}",
            f"{name(answer.error_code)} lock {milliseconds(answer)} "
            f"nodes {len(answer.node_endpoints)} {sorted(said)}",
        )
        return answer

    def nothing(self, *parts: Part, **changes: Any) -> Any:
        """Fetch, and check that no records are given."""
        return self.fetch(*parts, **{"wait_ms": NOT_LONG_MS} | changes)

    def parts_of(self, answer: Any) -> list[tuple[Part, Any]]:
        return [
            ((self.cluster.topic_name(topic.topic_id), part.partition_index), part)
            for topic in answer.responses
            for part in topic.partitions
        ]

    def _fetched(self, key: Part, part: Any) -> str:
        found = [data for _, data in batches(part.records) if is_whole(data)]
        held = " ".join(self.cluster.shown(data) for data in found if self._is_given(key, data))
        ranges = " ".join(f"{a}-{b}x{n}" for a, b, n in self.got[key])
        acked = ErrorCode(part.acknowledge_error_code)
        leader = part.current_leader.leader_id, part.current_leader.leader_epoch
        return (
            f"{key[0]}/{key[1]} {name(part.error_code)}{f' acks {name(acked)}' if acked else ''}"
            f"{'' if leader == (0, 0) else ' moved'}{' null' if part.records is None else ''} "
            f"[{held}] acquired [{ranges}]"
        )

    def _is_given(self, key: Part, data: bytes) -> bool:
        """Whether a batch was acquired: a real Kafka also answers with aborted ones between."""
        first = int.from_bytes(data[:8], "big")
        last = first + int.from_bytes(data[23:27], "big")
        return any(low <= last and first <= high for low, high, _ in self.got[key])

    def ack(
        self, acks: Acks, *, epoch: int | None = None, version: int = 2, renew: bool = False,
        at: Wire | None = None, **changes: Any,
    ) -> Any:  # fmt: skip
        """Send ShareAcknowledge in the session with the first partition's leader."""
        wire = at or self._wire(acks)
        values: dict[str, Any] = {
            "group_id": self.group, "member_id": self.id,
            "share_session_epoch": self.sessions.get(wire, 0) if epoch is None else epoch,
            "is_renew_ack": renew, "topics": self._topics(acks),
        } | changes  # fmt: skip
        answer = wire.call(ApiKey.SHARE_ACKNOWLEDGE, version, values)
        self._session(wire, values["share_session_epoch"], int(answer.error_code))
        said = []
        for key, part in self.parts_of(answer):
            leader = part.current_leader.leader_id, part.current_leader.leader_epoch
            moved = "" if leader == (0, 0) else " moved"
            if part.error_code or acks.get(key):  # a real Kafka drops some without any
                said.append(f"{key[0]}/{key[1]} {name(part.error_code)}{moved}")
        lock = f" lock {milliseconds(answer)}" if version >= 2 else ""
        rest = "".join(f" {k} {v}" for k, v in changes.items())
        self.cluster.say(
            f"ack v{version} {self.id} {shown_acks(acks)}{rest} {epoch=}"
            f"{' renew' if renew else ''}",
            f"{name(answer.error_code)}{lock} nodes {len(answer.node_endpoints)} {sorted(said)}",
        )
        return answer

    def close(self, acks: Acks | None = None) -> "Sharer":
        """End its one session, with the last acknowledgements."""
        (wire,) = self.sessions
        self.ack(acks or {}, epoch=-1, at=wire)
        return self

    # -- requests' parts

    def _wire(self, parts: Iterable[Part]) -> Wire:
        for part in parts:
            return self.cluster.leader(*part)
        return next(iter(self.sessions), self.cluster.wire)

    def _session(self, wire: Wire, epoch: int, code: int) -> None:
        if code == 0:
            self.sessions[wire] = 0 if epoch < 0 else epoch + 1

    def _topics(self, asked: Acks) -> list[dict[str, Any]]:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for (topic, partition), acks in asked.items():
            listed = [
                {"first_offset": first, "last_offset": last, "acknowledge_types": tuple(types)}
                for first, last, *types in acks
            ]
            part = {"partition_index": partition, "acknowledgement_batches": listed}
            topics.setdefault(self.cluster.share_id(topic), []).append(part)
        return [{"topic_id": topic, "partitions": parts} for topic, parts in topics.items()]

    def _forgotten(self, parts: Iterable[Part]) -> list[dict[str, Any]]:
        topics: dict[UUID, list[int]] = {}
        for topic, partition in parts:
            topics.setdefault(self.cluster.share_id(topic), []).append(partition)
        return [{"topic_id": topic, "partitions": tuple(at)} for topic, at in topics.items()]


def acquired(part: Any, *, apart: bool) -> list[tuple[int, int, int]]:
    """Return (first, last, delivery count) of each range.

    A real Kafka cuts a range that comes again, or a rest, depending on how it was given before:
    only ranges that are given for the first time are kept `apart`.
    """
    found: list[tuple[int, int, int]] = []
    for one in part.acquired_records:
        count = one.delivery_count
        alike = bool(found) and found[-1][1:] == (one.first_offset - 1, count)
        if alike and (count > 1 or not apart):
            found[-1] = found[-1][0], one.last_offset, count
        else:
            found.append((one.first_offset, one.last_offset, count))
    return found


def milliseconds(answer: Any) -> int:
    return int(answer.acquisition_lock_timeout.total_seconds() * 1000)


def shown_acks(asked: Acks) -> str:
    return "{" + ", ".join(f"{t}/{p}{acks or ''}" for (t, p), acks in asked.items()) + "}"


def sharing(
    cluster: ShareCluster, topic: str, member_id: str = "one", partitions: int = 1,
    **configs: str,
) -> Sharer:  # fmt: skip
    """Make a topic, a group of its name that begins at its start, and a member that has it all."""
    cluster.make(topic, partitions)
    cluster.configure(topic, **{"share_auto_offset_reset": "earliest"} | configs)
    return Sharer(cluster, topic, member_id, topic).silently(partitions)


def another(one: Sharer, member_id: str) -> Sharer:
    """Return a member of the same group that fetches without having joined, as anybody may."""
    return Sharer(one.cluster, one.group, member_id, *one.topics)
