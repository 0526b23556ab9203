"""TLS in small buffers: what goes through, in which pieces, and what a burst leaves behind."""

import asyncio
import os
import ssl
import time
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.server.connection import Connection
from kproxy.server.descriptors import PeerIs, peer_is, unsent_bytes
from kproxy.server.tls_protocol import TlsProtocol
from tests.securing import Authority, Site
from tests.wire import Wire, batch, fetch_values


class Transport:
    """A transport that keeps its writes; now and then it takes no more for a while."""

    def __init__(self) -> None:
        self.sent, self.closed, self.reading = bytearray(), False, True

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def close(self) -> None:
        self.closed = True

    abort = close

    def _force_close(self, error: Exception) -> None:
        self.closed = True


class Application(asyncio.BufferedProtocol):
    """An application that reads into rooms of odd sizes."""

    def __init__(self, random: Random) -> None:
        self.random, self.got, self.ended, self.may_write = random, bytearray(), False, True
        self.room = memoryview(bytearray())

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        self.room = memoryview(bytearray(self.random.choice((7, 5000, 16384, 300_000))))
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.room[:nbytes]
        if self.random.random() < 0.2:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self.may_write = False

    def resume_writing(self) -> None:
        self.may_write = True

    def eof_received(self) -> bool:
        self.ended = True
        return False


class Pair:
    """A client's end without a socket, and ours."""

    def __init__(self, authority: Authority, seed: int) -> None:
        self.random = Random(seed)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.server)
        loop = asyncio.get_running_loop()
        self.app, self.transport = Application(self.random), Transport()
        self.done = loop.create_future()
        self.tls = TlsProtocol(loop, self.app, context, self.done, 5.0, 5.0)
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = authority.context().wrap_bio(self.into, self.out, server_hostname="localhost")
        self.tls.connection_made(self.transport)  # type: ignore[arg-type]
        self.heard = bytearray()

    def shake_hands(self) -> None:
        for _ in range(3):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.carry()
        self.carry()

    def carry(self) -> None:
        """Carry one end's bytes to the other, in reads as large as they come."""
        encrypted = self.out.read()
        while encrypted:
            room = self.tls.get_buffer(-1)
            count = min(len(encrypted), self.random.choice((1000, 20_000, len(room))))
            room[:count] = encrypted[:count]
            self.tls.buffer_updated(count)
            encrypted = encrypted[count:]
        self.into.write(self.transport.sent)
        self.transport.sent.clear()
        while self.client.version() and self.into.pending:
            try:
                self.heard += self.client.read(1 << 20)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                return


@pytest.mark.parametrize("seed", range(10))
async def test_all_that_is_sent_comes_in_its_order(tmp_path: Path, seed: int) -> None:
    pair = Pair(Authority(tmp_path), seed)
    random, app, transport = pair.random, pair.app, pair.transport
    pair.shake_hands()
    await pair.done
    sent, answered = bytearray(), bytearray()
    for _ in range(30):
        data = random.randbytes(random.choice((1, 100, 40_000, 400_000)))
        if random.random() < 0.5 and transport.reading:
            sent += data
            pair.client.write(data)
        elif app.may_write:
            answered += data
            app.transport.write(data)
        what = random.randrange(3)
        if what == 0 and not pair.tls._ssl_writing_paused:
            pair.tls.pause_writing()
        elif what == 1 and pair.tls._ssl_writing_paused:
            pair.tls.resume_writing()
        elif what == 2:
            app.transport.resume_reading()
            await asyncio.sleep(0)
        pair.carry()
    if pair.tls._ssl_writing_paused:
        pair.tls.resume_writing()
    while len(app.got) < len(sent):
        app.transport.resume_reading()
        await asyncio.sleep(0)
    pair.carry()
    assert app.got == sent
    assert pair.heard == answered
    assert transport.reading
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    while not app.ended:
        app.transport.resume_reading()
        await asyncio.sleep(0)
        pair.carry()
    pair.tls.connection_lost(None)


async def test_a_connection_that_was_lost_and_closed_may_be_looked_at(tmp_path: Path) -> None:
    """FAULT: asyncio's transport of TLS then knew nothing, and the look ended the server."""
    pair = Pair(Authority(tmp_path), 1)
    pair.shake_hands()
    connection = Connection.__new__(Connection)
    connection._transport, connection._drained = pair.app.transport, asyncio.Event()
    pair.tls.connection_lost(None)
    for _ in range(2):
        connection.close()
    assert peer_is(connection._transport) is PeerIs.HERE
    assert unsent_bytes(connection._transport) == 0


async def test_client_that_does_not_read_is_read_no_more(tmp_path: Path) -> None:
    pair = Pair(Authority(tmp_path), 0)
    pair.shake_hands()
    await pair.done
    pair.app.transport.pause_reading()
    pair.client.write(bytes(400_000))
    pair.carry()
    assert not pair.transport.reading
    assert pair.tls._incoming.pending == 0
    assert not pair.app.got
    pair.tls.connection_lost(None)
    assert not pair.tls._rest


async def test_bytes_one_at_a_time_do_not_hold_the_loop(tmp_path: Path) -> None:
    """FAULT: 60,000 reads of a byte were kept one by one, and taking them again held it 12 s."""
    pair = Pair(Authority(tmp_path), 0)
    pair.shake_hands()
    await pair.done
    pair.app.transport.pause_reading()
    sent = os.urandom(20_000)
    pair.client.write(sent)
    began = time.process_time()
    for byte in pair.out.read():
        pair.tls.get_buffer(-1)[0] = byte
        pair.tls.buffer_updated(1)
    while len(pair.app.got) < len(sent):
        pair.app.transport.resume_reading()
        await asyncio.sleep(0)
    assert pair.app.got == sent
    assert time.process_time() - began < 1.0  # seconds; it took five
    pair.tls.connection_lost(None)


def test_a_burst_leaves_little_memory_with_a_connection(tmp_path: Path) -> None:
    """FAULT: OpenSSL's buffers and uvloop's kept 1.3 MB of each connection that had a burst."""
    site, count = Site(tmp_path), 40

    def burst(wire: Wire) -> None:
        wire.produce("q", batch(os.urandom(900_000)))
        wire.call(ApiKey.FETCH, 12, fetch_values({("q", 0): 0}, wait_ms=0))

    with site.running("--sync", "never"):
        server = psutil.Process(site.server.process.pid)
        wires = [site.wire("TLS") for _ in range(count + 10)]
        for wire in wires[:10]:
            burst(wire)
        before = server.memory_info().rss
        for wire in wires[10:]:
            burst(wire)
        time.sleep(0.1)
        assert (server.memory_info().rss - before) / count < 64 << 10
        for wire in wires:
            wire.socket.close()
