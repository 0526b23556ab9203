"""librdkafka's producer without copies and without a polling thread, where the platform has it.

`confluent_kafka.Producer` copies every record, and builds for every delivery report a Message with
copies of its key and value, on a thread that polls and takes the interpreter's lock from the event
loop. librdkafka's own interface (rdkafka.h: events, and a file descriptor that signals them) needs
neither. This module calls it in the same library that confluent-kafka has loaded.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import anyio
import confluent_kafka.cimpl
from anyio import to_thread
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException

_PRODUCER = 0  # rd_kafka_type_t
_CONF_OK = 0
_DELIVERY, _ERROR = 0x1, 0x8  # RD_KAFKA_EVENT_DR, RD_KAFKA_EVENT_ERROR
_PURGE_ALL = 0x3  # RD_KAFKA_PURGE_F_QUEUE and _INFLIGHT
_OWN_PARTITIONS = 0x8  # RD_KAFKA_MSG_F_PARTITION; and neither F_FREE nor F_COPY
_REASON_BYTES = 512
_EVENTS_A_TURN = 64
_BYTES_MAX, _COUNT_MAX = "queue.buffering.max.kbytes", "queue.buffering.max.messages"
_PURGED_S = 1.0
_COPIED_BYTES_MAX = 2048  # into the request's buffer; what is longer is sent from where it lies


Reports = list[tuple[int, int | None]]
"""The tag of each record, and its offset or None: its fate is not known."""
Reported = Callable[[Reports], None]
"""A callback on the event loop, for many reports at a time."""
_Put = tuple[int, bytes, bytes | None, int]  # partition, key, value, tag
Header = tuple[str, bytes]
"""A header of a record: a name, and bytes."""
_VU_TOPIC, _VU_PARTITION, _VU_VALUE, _VU_KEY, _VU_OPAQUE, _VU_HEADER = 2, 3, 4, 5, 6, 9


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_char_p),
        ("len", c_size_t),
        ("key", c_char_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("tag", c_size_t),
    )


class _Mem(ctypes.Structure):
    _fields_ = (("data", c_char_p), ("size", c_size_t))


class _Named(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("data", c_char_p), ("size", c_size_t))


class _Of(ctypes.Union):
    _fields_ = (
        ("handle", c_void_p),
        ("number", c_int32),
        ("tag", c_size_t),
        ("mem", _Mem),
        ("header", _Named),
        ("pad", ctypes.c_char * 64),
    )


class _Vu(ctypes.Structure):
    """rd_kafka_vu_t: one argument of `produceva`."""

    _fields_ = (("kind", c_int), ("of", _Of))


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conf_new": (c_void_p, ()),
    "conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "conf_set_events": (None, (c_void_p, c_int)),
    "conf_destroy": (None, (c_void_p,)),
    "new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "destroy": (None, (c_void_p,)),
    "topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "topic_destroy": (None, (c_void_p,)),
    "produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "produceva": (c_void_p, (c_void_p, c_void_p, c_size_t)),
    "error_destroy": (None, (c_void_p,)),
    "last_error": (c_int, ()),
    "purge": (c_int, (c_void_p, c_int)),
    "queue_get_main": (c_void_p, (c_void_p,)),
    "queue_destroy": (None, (c_void_p,)),
    "queue_io_event_enable": (None, (c_void_p, c_int, c_char_p, c_size_t)),
    "queue_poll": (c_void_p, (c_void_p, c_int)),
    "event_type": (c_int, (c_void_p,)),
    "event_message_count": (c_size_t, (c_void_p,)),
    "event_message_array": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "event_error": (c_int, (c_void_p,)),
    "event_error_is_fatal": (c_int, (c_void_p,)),
    "event_error_string": (c_char_p, (c_void_p,)),
    "event_destroy": (None, (c_void_p,)),
}


class _Library:
    """The functions above, by their names without `rd_kafka_`. Raises OSError, AttributeError.

    They return at once, so the interpreter's lock is kept; but for `destroy`, which joins threads.
    """

    def __init__(self) -> None:
        path = confluent_kafka.cimpl.__file__
        quick, slow = ctypes.PyDLL(path), ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(slow if name == "destroy" else quick, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # for who checks types
        raise AttributeError(name)


@cache
def library() -> _Library | None:
    """Return librdkafka; None where confluent-kafka is built so that it cannot be reached."""
    with suppress(OSError, AttributeError):
        return _Library()
    return None


class NativeProducer:
    """A producer like `PlainProducer`, made and used on the event loop's thread.

    Records put in line in one turn of the loop go to librdkafka in one call at its end: one wake-up
    of its thread, one request to the broker. A record that it would refuse is refused in `put`.
    """

    def __init__(self, lib: _Library, settings: dict[str, Any], reported: Reported) -> None:
        self._lib = lib
        self._reported = reported
        self._on_error: Callable[[UpstreamError], None] = settings["error_cb"]
        self._producer = self._new(settings)
        self._topics: dict[str, int] = {}
        self._size_max = int(settings["message.max.bytes"])
        self._bytes_max = int(settings[_BYTES_MAX]) << 10
        self._count_max = int(settings[_COUNT_MAX])
        self._bytes = 0
        self._in_flight: dict[int, bytes | None] = {}  # tag -> what librdkafka sends from
        self._line: dict[str, list[_Put]] = {}  # by topic: what came in this turn
        self._headers: dict[int, Header] = {}  # by tag, of those in line that have one
        self._queue = lib.queue_get_main(self._producer)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._served = anyio.Event()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        lib.queue_io_event_enable(self._queue, self._writable, b"!", 1)
        self._loop.add_reader(self._readable, self._serve)
        self._serve()  # records that came before there was a listener

    def _new(self, settings: dict[str, Any]) -> int:
        lib = self._lib
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        conf = lib.conf_new()
        for name, value in {"message.copy.max.bytes": _COPIED_BYTES_MAX, **settings}.items():
            if name == "error_cb":
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if lib.conf_set(conf, name.encode(), text.encode(), reason, _REASON_BYTES) != _CONF_OK:
                lib.conf_destroy(conf)
                raise _failure(UpstreamError._INVALID_ARG, reason.value)
        lib.conf_set_events(conf, _DELIVERY | _ERROR)
        producer: int | None = lib.new(_PRODUCER, conf, reason, _REASON_BYTES)
        if producer is None:
            lib.conf_destroy(conf)
            raise _failure(UpstreamError._INVALID_ARG, reason.value)
        return producer

    def put(
        self, topic: str, partition: int, key: bytes, value: bytes | None, tag: int,
        header: Header | None = None,
    ) -> None:  # fmt: skip
        """Put a record in line. Raises BufferError where the line is full, KafkaException."""
        size = len(value or b"")
        if size + len(key) > self._size_max:
            raise _failure(UpstreamError.MSG_SIZE_TOO_LARGE)
        if self._bytes + size > self._bytes_max or len(self._in_flight) >= self._count_max:
            raise BufferError
        if topic not in self._topics:
            self._open(topic)
        if not self._line:
            self._loop.call_soon(self._send)
        self._bytes += size
        self._in_flight[tag] = value
        if header is not None:
            self._headers[tag] = header
        self._line.setdefault(topic, []).append((partition, key, value, tag))

    def _open(self, topic: str) -> None:
        handle: int | None = self._lib.topic_new(self._producer, topic.encode(), None)
        if handle is None:
            raise _failure(self._lib.last_error())
        self._topics[topic] = handle

    def _send(self) -> None:
        line, self._line = self._line, {}
        for topic, puts in line.items():
            handle = self._topics[topic]
            if self._headers:
                for run in _runs(puts, self._headers):
                    header = self._headers.pop(run[0][3], None)
                    if header is None:
                        self._send_batch(handle, run)
                    else:
                        self._send_with(handle, *run[0], header)
            else:
                self._send_batch(handle, puts)

    def _send_batch(self, handle: int, puts: list[_Put]) -> None:
        count = len(puts)
        messages = (_Message * count)()
        for message, (partition, key, value, tag) in zip(messages, puts, strict=True):
            message.partition = partition
            message.payload, message.len = value, len(value or b"")
            message.key, message.key_len = key, len(key)
            message.tag = tag
        taken = self._lib.produce_batch(handle, -1, _OWN_PARTITIONS, messages, count)
        if taken < count:
            self._landed([(message.tag, None) for message in messages if message.err])

    def _send_with(
        self, handle: int, partition: int, key: bytes, value: bytes | None, tag: int, header: Header
    ) -> None:
        """Send one record with a header, which batches cannot have."""
        name, data = header
        arguments = (_Vu * 6)(
            _Vu(_VU_TOPIC, _Of(handle=handle)),
            _Vu(_VU_PARTITION, _Of(number=partition)),
            _Vu(_VU_VALUE, _Of(mem=_Mem(value, len(value or b"")))),
            _Vu(_VU_KEY, _Of(mem=_Mem(key, len(key)))),
            _Vu(_VU_OPAQUE, _Of(tag=tag)),
            _Vu(_VU_HEADER, _Of(header=_Named(name.encode(), data, len(data)))),
        )
        error = self._lib.produceva(self._producer, arguments, len(arguments))
        if error is not None:
            self._lib.error_destroy(error)
            self._landed([(tag, None)])

    # -- what comes back

    def _serve(self) -> None:
        """Take the reports and errors there are; some in a turn, so that others have one too."""
        if self._closed:
            return
        with suppress(BlockingIOError):
            os.read(self._readable, 64)
        reports: Reports = []
        for _ in range(_EVENTS_A_TURN):
            event = self._lib.queue_poll(self._queue, 0)
            if event is None:
                break
            kind = self._lib.event_type(event)
            if kind == _DELIVERY:
                self._take_reports(event, reports)
            elif kind == _ERROR:
                self._take_error(event)
            self._lib.event_destroy(event)
        else:
            self._loop.call_soon(self._serve)
        if reports:
            self._landed(reports)

    def _landed(self, reports: Reports) -> None:
        in_flight = self._in_flight
        for tag, _ in reports:
            self._bytes -= len(in_flight.pop(tag) or b"")
        self._reported(reports)
        self._served.set()

    def _take_reports(self, event: int, reports: Reports) -> None:
        count = self._lib.event_message_count(event)
        messages = (c_void_p * count)()
        self._lib.event_message_array(event, messages, count)
        for address in messages:
            message = _Message.from_address(address)
            known = not message.err and message.offset >= 0  # it may be there, and where is unknown
            reports.append((message.tag, message.offset if known else None))

    def _take_error(self, event: int) -> None:
        lib = self._lib
        reason: bytes = lib.event_error_string(event) or b""
        error = UpstreamError(
            lib.event_error(event),
            reason.decode(errors="replace"),
            bool(lib.event_error_is_fatal(event)),
        )
        self._on_error(error)

    # -- the end

    async def _drain(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while self._in_flight:
                self._served = anyio.Event()
                await self._served.wait()

    async def close(self, seconds: float) -> None:
        """Send what is in line for so long; what is left then has no known fate."""
        await self._drain(seconds)
        kept = list(self._in_flight.values())  # until nothing can be sent from there any more
        self._lib.purge(self._producer, _PURGE_ALL)
        await self._drain(_PURGED_S)
        self._closed = True
        self._loop.remove_reader(self._readable)
        self._lib.queue_io_event_enable(self._queue, -1, None, 0)
        self._lib.queue_destroy(self._queue)
        for handle in self._topics.values():
            self._lib.topic_destroy(handle)
        await to_thread.run_sync(self._lib.destroy, self._producer)
        kept.clear()
        self._landed([(tag, None) for tag in self._in_flight])
        os.close(self._readable)
        os.close(self._writable)


def _runs(puts: list[_Put], alone: Container[int]) -> Iterator[list[_Put]]:
    """Yield the same in order, each record with one of these tags by itself."""
    run: list[_Put] = []
    for put in puts:
        if put[3] in alone:
            if run:
                yield run
            yield [put]
            run = []
        else:
            run.append(put)
    if run:
        yield run


def _failure(code: int, reason: bytes = b"") -> KafkaException:
    return KafkaException(UpstreamError(code, reason.decode(errors="replace") or None))
