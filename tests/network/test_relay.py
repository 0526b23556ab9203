"""The relay does what it says, so that tests with it show what they say."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.network.relay import BOTH, Frames, Relay, Way

WAIT_S = 60  # on a busy machine


class Ends:
    """A client's and a server's end of a connection through a relay."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(WAIT_S)
        self.relay = Relay(self.listening.getsockname()[1])
        self.client, self.server = self.connect()

    def connect(self) -> tuple[socket.socket, socket.socket]:
        client = socket.create_connection(("127.0.0.1", self.relay.port), WAIT_S)
        server, _ = self.listening.accept()
        server.settimeout(WAIT_S)
        return client, server

    def close(self) -> None:
        self.relay.close()
        for one in (self.client, self.server, self.listening):
            one.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with closing(Ends()) as made:
        yield made


def silent(one: socket.socket) -> bool:
    one.settimeout(0.1)
    try:
        one.recv(1)
    except TimeoutError:
        return True
    finally:
        one.settimeout(WAIT_S)
    return False


def test_bytes_that_are_lost_one_way_come_once_healed(ends: Ends) -> None:
    ends.relay.drop(Way.THERE)
    ends.client.sendall(b"there")
    ends.server.sendall(b"back")
    assert ends.client.recv(10) == b"back"
    assert silent(ends.server)
    ends.relay.heal()
    assert ends.server.recv(10) == b"there"


def test_nobody_connects_while_bytes_are_lost_one_way(ends: Ends) -> None:
    ends.relay.drop(Way.BACK)
    with socket.create_connection(("127.0.0.1", ends.relay.port), WAIT_S) as client:
        client.sendall(b"x")
        ends.listening.settimeout(0.1)
        with pytest.raises(TimeoutError):
            ends.listening.accept()
        ends.relay.heal()
        ends.listening.settimeout(WAIT_S)
        with ends.listening.accept()[0] as server:
            assert server.recv(1) == b"x"


def test_a_forgotten_connection_stays_silent_and_new_ones_work(ends: Ends) -> None:
    ends.relay.forget()
    ends.client.sendall(b"x")
    assert silent(ends.server)
    ends.relay.heal()
    assert silent(ends.server)
    client, server = ends.connect()
    with client, server:
        client.sendall(b"y")
        assert server.recv(1) == b"y"


@pytest.mark.parametrize("way", BOTH)
def test_a_cut_is_a_reset_behind_so_many_bytes_of_a_frame(ends: Ends, way: Way) -> None:
    sender, receiver = ends.client, ends.server
    if way is Way.BACK:
        sender, receiver = receiver, sender
    first, second = (struct.pack(">i", size) + bytes(size) for size in (3, 100))
    sender.sendall(first)
    assert receiver.recv(100) == first
    ends.relay.cut(way, 10)
    sender.sendall(second)
    got: list[bytes] = []
    with pytest.raises(ConnectionResetError):
        got.extend(iter(lambda: receiver.recv(100), b""))
    assert second[:10].startswith(b"".join(got))  # a reset may take some of them
    with pytest.raises(ConnectionResetError):
        sender.recv(1)
    assert ends.relay.made_cuts == 1


def test_frames_are_told_apart_however_their_bytes_come() -> None:
    data = b"".join(struct.pack(">i", size) + bytes(size) for size in (0, 1, 9, 3))
    starts = [0, 4, 9, 22]
    for size in (1, 2, 3, 5, 100):
        frames = Frames()
        pieces = [(at, data[at : at + size]) for at in range(0, len(data), size)]
        assert [at + start for at, piece in pieces for start in frames.starts(piece)] == starts


def test_refused_until_healed(ends: Ends) -> None:
    ends.relay.refuse()
    with pytest.raises(ConnectionResetError):
        ends.client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ends.relay.port), WAIT_S)
    ends.relay.heal()
    client, server = ends.connect()
    with client, server:
        server.sendall(b"x")
        assert client.recv(1) == b"x"


def test_late_and_slow(ends: Ends) -> None:
    ends.relay.delay(0.1)
    began = time.monotonic()
    ends.client.sendall(b"x")
    assert ends.server.recv(1) == b"x"
    assert time.monotonic() - began >= 0.1
    ends.relay.heal()
    ends.relay.throttle(100)
    began = time.monotonic()
    ends.client.sendall(bytes(10))
    got = 0
    while got < 10:
        got += len(ends.server.recv(10))
    assert time.monotonic() - began >= 0.07
