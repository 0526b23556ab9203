"""Failed logins by address."""

import asyncio

import pytest

from kproxy.server import attempts
from kproxy.server.attempts import Attempts
from tests.harness import until


async def test_failures_wait_longer_each_time_and_are_forgotten() -> None:
    now = [0.0]
    logins = Attempts(lambda: now[0])
    waits = [logins.blame("10.0.0.1") for _ in range(5000)]
    assert waits[0] == 0.1
    assert waits == sorted(waits)
    assert set(waits[20:]) == {2.0}
    assert logins.blame("10.0.0.2") == 0.1, "another address"
    now[0] += 20
    assert 0.1 < logins.blame("10.0.0.1") < 2
    now[0] += 600
    assert logins.blame("10.0.0.1") == pytest.approx(0.1)


async def test_addresses_of_one_network_are_one() -> None:
    logins = Attempts(lambda: 0.0)
    assert logins.blame("2001:db8::1") == 0.1
    assert logins.blame("2001:db8::2:3%eth0") > 0.1
    assert logins.blame("2001:db8:0:1::1") == 0.1


async def test_an_address_has_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "AT_ONCE", 3)
    logins, here, most = Attempts(), 0, 0

    async def log_in(ip: str = "10.0.0.1") -> None:
        nonlocal here, most
        async with logins.turn(ip):
            here += 1
            most = max(most, here)
            try:
                await asyncio.sleep(0.001)
            finally:
                here -= 1

    tasks = [asyncio.create_task(log_in()) for _ in range(20)]
    await asyncio.sleep(0)
    for number in (0, 5, 8, 19):
        tasks[number].cancel()  # one who has a place, and some who wait for one
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert not logins._taken
    assert not logins._line


async def test_a_failed_login_keeps_its_place_though_nobody_waits_for_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "AT_ONCE", 3)
    logins, loop = Attempts(), asyncio.get_running_loop()
    for _ in range(5):
        async with logins.turn("10.0.0.1"):
            wait_s = logins.blame("10.0.0.1")
        if wait_s > 0.22:
            break
    began = loop.time()
    async with asyncio.timeout(3), logins.turn("10.0.0.1"):
        assert loop.time() - began > 0.05
    async with logins.turn("10.0.0.1"):
        logins.blame("10.0.0.1")
    waiting = asyncio.create_task(logins.turn("10.0.0.1").__aenter__())
    async with logins.turn("10.0.0.2"):
        assert not waiting.done(), "another address does not wait"
    waiting.cancel()
    await until(lambda: not logins._taken)


async def test_waiter_that_leaves_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: all stayed in line while nobody got a place."""
    monkeypatch.setattr(attempts, "AT_ONCE", 1)
    logins = Attempts()

    async def log_in() -> None:
        async with logins.turn("10.0.0.1"):
            pass

    async with logins.turn("10.0.0.1"):
        tasks = [asyncio.create_task(log_in()) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks[:19]:
            task.cancel()
        await asyncio.sleep(0)
        assert len(logins._line["10.0.0.1"]) == 1
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not tasks[19].cancelled()
    assert not logins._line
    assert not logins._taken
