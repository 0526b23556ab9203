"""File descriptors: how many the system allows, how many connections may take, how one stands.

Connections leave enough descriptors for the shards: a process without descriptors cannot flush
rows, and ends.
"""

import asyncio
import fcntl
import resource
import socket
import struct
import termios
from contextlib import suppress
from enum import Enum, auto

import structlog

_log = structlog.get_logger()

_PER_SHARD = 768  # open at most: segments, RocksDB's files
_COUNT = struct.Struct("i")
_SPARE = 64  # listener, Kafka's brokers, threads, logs


def raise_limit() -> None:
    """Take as many as the system allows: the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_max(asked: int, shards: int) -> int:
    """Return how many connections there can be: those asked for, or fewer and a warning."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return asked
    room = max(1, limit - min(_PER_SHARD * shards, limit // 2) - _SPARE)
    if room < asked:
        _log.warning(
            "fewer_connections", connections=room, asked=asked, descriptors=limit,
            hint="raise the limit of open files (ulimit -n, LimitNOFILE)",
        )  # fmt: skip
    return min(asked, room)


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that the peer has not acknowledged yet, here and in the kernel."""
    count = transport.get_write_buffer_size()
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError, ValueError):  # it is closed
            (queued,) = _COUNT.unpack(
                fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size))
            )
            count += queued
    return count


_CLOSED, _CLOSE_WAIT, _LAST_ACK = 7, 8, 9  # states of TCP, as the kernel numbers them


class PeerIs(Enum):
    """The distance of the other end of a connection."""

    HERE = auto()
    LEAVING = auto()  # it sends no more; it may still read
    GONE = auto()


def peer_is(transport: asyncio.BaseTransport) -> PeerIs:
    """Ask the kernel: a transport that is not read tells neither the end of input nor a reset.

    Only Linux is asked; elsewhere everybody is here.
    """
    raw: socket.socket | None = transport.get_extra_info("socket")
    option: int | None = getattr(socket, "TCP_INFO", None)
    if raw is None or option is None:
        return PeerIs.HERE
    try:
        state = raw.getsockopt(socket.IPPROTO_TCP, option, 1)[0]
    except (OSError, ValueError):  # it is closed
        return PeerIs.HERE
    if state == _CLOSED:
        return PeerIs.GONE
    return PeerIs.LEAVING if state in (_CLOSE_WAIT, _LAST_ACK) else PeerIs.HERE
