"""Clients that ignore their throttle time, and addresses that connect too often: over sockets."""

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.security.quotas import CONNECTED, PRODUCED, WORKED
from tests.harness import Served, eventually, served
from tests.securing import Site, log_in
from tests.wire import Wire, batch, fetch_values, produce_values


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as running:
        yield running


def limit(wire: Wire, key: str, value: float | None, kind: str, name: str | None) -> None:
    op = {"key": key, "value": value or 0.0, "remove": value is None}
    entry = {"entity": [{"entity_type": kind, "entity_name": name}], "ops": [op]}
    told = wire.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    assert told.entries[0].error_code == 0, told


def groups(wire: Wire) -> Any:
    return wire.call(ApiKey.LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})


@pytest.mark.parametrize("acks", [-1, 0])
def test_nothing_is_taken_from_who_does_not_wait(server: Served, acks: int) -> None:
    with Wire(server.host, server.port) as admin, Wire(server.host, server.port) as wire:
        assert admin.create("q").error_code == 0
        limit(admin, PRODUCED, 50_000, "user", "ANONYMOUS")
        began = time.monotonic()
        wire.send(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(575_000)), acks=acks))
        wire.send(ApiKey.PRODUCE, 9, produce_values("q", batch(b"v"), acks=-1))
        if acks:
            _, told = wire.receive(ApiKey.PRODUCE, 9)
            assert told.responses[0].partition_responses[0].error_code == 0
            assert 1.4 < told.throttle_time.total_seconds() < 1.6
            told_s = time.monotonic() - began
        groups(admin)  # others of the same user go on until they send as well
        _, told = wire.receive(ApiKey.PRODUCE, 9)
        assert told.responses[0].partition_responses[0].base_offset == 1
        assert time.monotonic() - began > 1.4
        if acks:
            assert told_s < time.monotonic() - began - 0.3, "it is told before it waits"


def test_client_that_keeps_the_worker_busy_waits(server: Served) -> None:
    with Wire(server.host, server.port) as admin, Wire(server.host, server.port) as wire:
        limit(admin, WORKED, 1e-9, "client-id", "kproxy")
        began = time.monotonic()
        assert groups(wire).throttle_time.total_seconds() == 1
        wire.send(ApiKey.LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
        wire.receive(ApiKey.LIST_GROUPS, 5)
        assert time.monotonic() - began > 0.95


def test_a_muted_client_that_leaves_is_gone_and_a_stop_does_not_wait(server: Served) -> None:
    with Wire(server.host, server.port) as admin:
        limit(admin, PRODUCED, 1, "client-id", None)
        wire = Wire(server.host, server.port)
        told = wire.call(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(100_000))))
        assert told.throttle_time.total_seconds() > 10_000
        wire.socket.sendall(b"\0\0\0\x10abc")
        wire.socket.close()
        with Wire(server.host, server.port) as wire:
            wire.send(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(100_000))))
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 10


def half_closed(server: Served) -> int:
    """Return the number of connections whose clients have left, and which kproxy still has."""
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(one.status == psutil.CONN_CLOSE_WAIT for one in found)


@pytest.mark.parametrize("reset", [False, True])
def test_a_muted_client_that_leaves_is_let_go(server: Served, reset: bool) -> None:
    """FAULT: a socket that is not read tells no end: it was held for as long as it was to wait."""
    with Wire(server.host, server.port) as admin:
        limit(admin, PRODUCED, 1, "client-id", None)
        wire = Wire(server.host, server.port)
        wire.call(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(100_000))))
        wire.send(ApiKey.PRODUCE, 9, produce_values("q", batch(b"never taken")))
        time.sleep(0.1)
        if reset:
            linger = struct.pack("ii", 1, 0)
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wire.socket.close()
        ours = server.process.pid
        eventually(lambda: len(psutil.Process(ours).net_connections("tcp")) == 3, 5)  # and http
        assert not half_closed(server)


def test_reconnected_client_is_to_wait_all_the_same(server: Served) -> None:
    """FAULT: the first Produce of each connection was taken, whatever there was before."""
    with Wire(server.host, server.port) as admin, Wire(server.host, server.port) as wire:
        limit(admin, PRODUCED, 1000, "user", "ANONYMOUS")
        told = wire.call(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(100_000))))
        assert told.throttle_time.total_seconds() > 80
        with Wire(server.host, server.port) as again:
            again.send(ApiKey.PRODUCE, 9, produce_values("q", batch(b"v")))
            again.socket.settimeout(1.5)
            with pytest.raises(TimeoutError):
                again.receive(ApiKey.PRODUCE, 9)
            groups(admin)  # requests that are not about the quota go on
            limit(admin, PRODUCED, 1_000_000, "user", "ANONYMOUS")
            again.socket.settimeout(3)
            _, told = again.receive(ApiKey.PRODUCE, 9)
            assert told.responses[0].partition_responses[0].base_offset == 1


def test_a_quota_that_is_dropped_ends_the_wait(server: Served) -> None:
    """FAULT: a client waited as long as it was told, though nothing asked for that any more."""
    with Wire(server.host, server.port) as admin, Wire(server.host, server.port) as wire:
        limit(admin, PRODUCED, 1000, "user", "ANONYMOUS")
        wire.call(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(100_000))))
        limit(admin, PRODUCED, None, "user", "ANONYMOUS")
        wire.socket.settimeout(3)
        groups(wire)


@pytest.mark.parametrize("frames", [1, 3])
def test_the_end_of_input_ends_long_polls(server: Served, frames: int) -> None:
    """FAULT: a long poll of 24 days held its connection behind a half-close."""
    with Wire(server.host, server.port) as wire:
        assert wire.create("q").error_code == 0
        for _ in range(frames):
            values = fetch_values({("q", 0): 0}, wait_ms=2**31 - 1)
            wire.send(ApiKey.FETCH, 12, values)
        time.sleep(0.1)
        wire.socket.shutdown(socket.SHUT_WR)
        wire.socket.settimeout(5)
        for _ in range(frames):
            wire.receive(ApiKey.FETCH, 12)
        assert wire.socket.recv(1) == b""


def test_an_address_that_connects_too_often(server: Served) -> None:
    with Wire(server.host, server.port) as admin:
        limit(admin, CONNECTED, 1, "ip", None)
        turned_away = 0
        for _ in range(15):
            with Wire(server.host, server.port) as wire:
                try:
                    groups(wire)
                except ConnectionError:
                    turned_away += 1
        assert 4 <= turned_away <= 6
        limit(admin, CONNECTED, None, "ip", None)
        with Wire(server.host, server.port) as wire:
            groups(wire)


def test_by_tls_and_by_who_has_logged_in(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.running():
        site.add_user("alice")
        with site.wire("INSIDE") as admin, site.wire("OUTSIDE") as wire:
            assert log_in(wire).error_code == 0
            limit(admin, WORKED, 1e-9, "user", "alice")
            assert groups(wire).throttle_time.total_seconds() == 1
            assert not groups(admin).throttle_time
            limit(admin, CONNECTED, 1, "ip", "127.0.0.1")
            turned_away = 0
            for _ in range(13):
                try:
                    with site.wire("TLS") as another:
                        groups(another)
                except OSError:
                    turned_away += 1
            assert 2 <= turned_away <= 4
