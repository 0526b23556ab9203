"""Members of a share group, their requests encoded by hand: stock clients cost more than servers.

A member accepts what it holds with its next fetch, as a Java consumer does that acknowledges what
it polled. `drive` serves any number of them from one thread.
"""

import selectors
import struct
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response
from kproxy.protocol.varint import read_uvarint, uvarint
from tests.wire import Wire, batch, produce_values

VERSION = 2
_GROUP = 32  # the type of a group's configs
_MAX_WAIT_MS, _MIN_BYTES = 500, 1  # Java's defaults
_BYTES_OF_ONE = 2048  # asked for, of each record that is
_UNLOADED = {14, 15, 16}  # errors of a coordinator that is not there yet
_CLIENT_ID = b"benchmark"
_WITHIN_S = 60

_HEAD = struct.Struct(">hhih")
_LIMITS = struct.Struct(">iiiiiibb")
_PART = struct.Struct(">B16sBi")
_RANGE = struct.Struct(">qq")
_ACQUIRED = struct.Struct(">qqhB")
_CODE = struct.Struct(">h")
_CODE_AT, _TOPICS_AT, _PART_CODE_AT, _ACK_CODE_AT, _RECORDS_AT = 9, 16, 38, 41, 53

Range = tuple[int, int]


class Place(NamedTuple):
    """A server and one queue of a single partition there."""

    host: str
    port: int
    queue: str
    topic_id: bytes

    def wire(self) -> Wire:
        return Wire(self.host, self.port, _WITHIN_S)


def place(address: str, queue: str) -> Place:
    host, port = address.split(":")
    with Wire(host, int(port)) as wire:
        (topic,) = wire.metadata(queue, create=False).topics
    return Place(host, int(port), queue, topic.topic_id.bytes)


def fill(at: Place, records: int, each: int, record_bytes: int) -> None:
    """Produce in batches of so many records, some requests under way at a time."""
    values = produce_values(at.queue, batch(*[b"x" * record_bytes] * each))
    under_way: deque[int] = deque()
    with at.wire() as wire:
        for _ in range(records // each):
            under_way.append(wire.send(ApiKey.PRODUCE, 9, values))
            if len(under_way) == 5:
                _produced(wire, under_way.popleft())
        while under_way:
            _produced(wire, under_way.popleft())


def _produced(wire: Wire, sent: int) -> None:
    correlation, answer = wire.receive(ApiKey.PRODUCE, 9)
    assert correlation == sent
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def from_the_start(wire: Wire, group: str) -> None:
    """Have the group read from the start of the queue."""
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": _GROUP, "resource_name": group, "configs": [config]}
    values = {"resources": [resource], "validate_only": False}
    answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)
    assert answer.responses[0].error_code == 0, answer


class Member:
    """One member, its connection and its share session."""

    def __init__(self, at: Place, group: str, records: int, control: Wire) -> None:
        """Take `records`: how many it asks for at once; `control`: where its heartbeats go."""
        self.at, self.group = at, group
        self._control = control
        self.wire = at.wire()
        self.id = str(uuid.uuid4())
        self._beat = 0
        self._session = 0
        ident = b"".join(uvarint(len(one) + 1) + one.encode() for one in (group, self.id))
        self._ident = b"\0" + ident  # behind a header without tags
        self._records = records
        self.buffer = bytearray()
        self.said = 0  # records that the request under way accepts
        self.done = False

    # -- membership

    def join(self) -> None:
        """Send heartbeats until it has the queue's partition."""
        end = time.monotonic() + _WITHIN_S
        while True:
            answer = self._heartbeat(self._beat, (self.at.queue,) if not self._beat else None)
            if answer.error_code == 0:
                self._beat = answer.member_epoch
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    return
            elif answer.error_code not in _UNLOADED:
                raise RuntimeError(answer)
            assert time.monotonic() < end, answer
            time.sleep(0.05)

    def leave(self) -> None:
        self.wire.socket.close()  # a fetch may wait there
        self._heartbeat(-1, None)

    def _heartbeat(self, epoch: int, names: tuple[str, ...] | None) -> Any:
        values = {
            "group_id": self.group, "member_id": self.id, "member_epoch": epoch,
            "rack_id": None, "subscribed_topic_names": names,
        }  # fmt: skip
        return self._control.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, values)

    # -- records

    def fetch(self, held: Sequence[Range] = (), wait_ms: int = _MAX_WAIT_MS) -> None:
        """Ask for records, and accept what it holds."""
        records = self._records
        limits = _LIMITS.pack(
            self._session, wait_ms, _MIN_BYTES, records * _BYTES_OF_ONE, records, records, 0, 0
        )
        named = held or not self._session
        self._send(ApiKey.SHARE_FETCH, limits + (self._topic(held) if named else b"\1") + b"\1\0")

    def accept(self, held: Sequence[Range]) -> None:
        """Accept what it holds, and ask for no more."""
        epoch = struct.pack(">ib", self._session, 0)
        self._send(ApiKey.SHARE_ACKNOWLEDGE, epoch + self._topic(held) + b"\0")

    def _topic(self, held: Sequence[Range]) -> bytes:
        said = [_RANGE.pack(*one) + b"\2\1\0" for one in held]  # one type, ACCEPT; no tags
        head = _PART.pack(2, self.at.topic_id, 2, 0)
        return b"".join((head, uvarint(len(said) + 1), *said, b"\0\0"))

    def _send(self, key: int, body: bytes) -> None:
        head = _HEAD.pack(key, VERSION, self._session, len(_CLIENT_ID)) + _CLIENT_ID
        frame = head + self._ident + body
        self._session += 1
        self.wire.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def accepted(self) -> None:
        """Wait for the answer to `accept`."""
        _check_accepted(self.wire.receive_frame())

    def acquired(self) -> list[Range]:
        """Wait for the answer to `fetch`."""
        return _acquired(self.wire.receive_frame())

    def read(self) -> bytes | None:
        """Return the whole frame that has come by now, if any."""
        more = self.wire.socket.recv(1 << 20)
        if not more:
            raise ConnectionError("the server closed the connection")
        self.buffer += more
        length = int.from_bytes(self.buffer[:4], "big")
        if len(self.buffer) < 4 or len(self.buffer) < 4 + length:
            return None
        frame = bytes(self.buffer[4:])
        self.buffer.clear()
        return frame


def _acquired(frame: bytes) -> list[Range]:
    """Return the ranges of a ShareFetch response's only partition. Nothing may be refused in it."""
    if _CODE.unpack_from(frame, _CODE_AT)[0]:
        raise RuntimeError(decode_response(ApiKey.SHARE_FETCH, VERSION, frame))
    if frame[_TOPICS_AT] < 2:
        return []
    codes = _CODE.unpack_from(frame, _PART_CODE_AT) + _CODE.unpack_from(frame, _ACK_CODE_AT)
    if any(codes):
        raise RuntimeError(decode_response(ApiKey.SHARE_FETCH, VERSION, frame))
    records, at = read_uvarint(frame, _RECORDS_AT, len(frame))
    count, at = read_uvarint(frame, at + max(0, records - 1), len(frame))
    found = []
    for number in range(count - 1):
        first, last, deliveries, _ = _ACQUIRED.unpack_from(frame, at + number * _ACQUIRED.size)
        assert deliveries == 1, "what was delivered once is not to come again"
        found.append((first, last))
    return found


def _check_accepted(frame: bytes) -> None:
    _, answer = decode_response(ApiKey.SHARE_ACKNOWLEDGE, VERSION, frame)
    parts = [part for topic in answer.responses for part in topic.partitions]
    if answer.error_code or len(parts) != 1 or parts[0].error_code:
        raise RuntimeError(answer)


@contextmanager
def members(at: Place, group: str, count: int, records: int) -> Iterator[list[Member]]:
    """Run so many members of a group that reads the queue from its start."""
    with at.wire() as wire, ExitStack() as stack:
        from_the_start(wire, group)
        found = []
        for _ in range(count):
            member = Member(at, group, records, wire)
            stack.callback(member.leave)
            member.join()
            found.append(member)
        yield found


def drive(some: list[Member], records: int) -> float:
    """Acquire and accept so many records that are there; the seconds of it."""
    left = to_come = records
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for member in some:
            selector.register(member.wire.socket, selectors.EVENT_READ, member)
            member.fetch()
        while left > 0:
            ready = selector.select(_WITHIN_S)
            assert ready, f"{left} records left, and no answer"
            for key, _ in ready:
                member = key.data
                frame = member.read()
                if frame is None:
                    continue
                left -= member.said
                member.said = 0
                if member.done:
                    _check_accepted(frame)
                    continue
                held = _acquired(frame)
                member.said = sum([last - first + 1 for first, last in held])
                to_come -= member.said
                if to_come > 0:
                    member.fetch(held)
                else:  # with a fetch Kafka would wait for more
                    member.done = True
                    if held:
                        member.accept(held)
    return time.perf_counter() - began
