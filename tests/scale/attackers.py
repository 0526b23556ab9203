"""The loads of hostile clients, on 127.0.0.1 alone: `python -m tests.scale.attackers KIND`.

Each prints `ready` once it is at work, and ends with its standard input.
"""

import asyncio
import sys
from contextlib import suppress

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from tests.securing import plain
from tests.wire import batch, produce_values

_AT_ONCE = 200


def address_of(number: int, second: int) -> tuple[str, int]:
    return f"127.{second}.{number >> 8 & 255}.{number & 255 or 1}", 0


async def opened(
    port: int, source: tuple[str, int]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=source)


async def silent(ports: list[int]) -> None:
    """Hold 10,000 silent connections of 5,000 addresses, made again where they are ended."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        while True:
            with suppress(OSError, TimeoutError):
                async with gate:
                    source = address_of(number % 5000, 10)
                    reader, writer = await opened(ports[number % len(ports)], source)
                await reader.read(1)
                writer.close()
            await asyncio.sleep(30)

    await asyncio.gather(*(one(number) for number in range(10_000)))


async def guesses(ports: list[int]) -> None:
    """Guess 2,000 passwords by PLAIN, of 200 addresses, in half a minute."""

    async def one(number: int) -> None:
        await asyncio.sleep(number / 2000 * 30)
        with suppress(OSError):
            reader, writer = await opened(ports[0], address_of(number % 200, 20))
            writer.write(encode_request(17, 1, 1, {"mechanism": "PLAIN"}))
            guess = plain("alice", f"guess {number}")
            writer.write(encode_request(36, 1, 2, {"auth_bytes": guess}))
            await reader.read()
            writer.close()

    await asyncio.gather(*(one(number) for number in range(2000)))


async def scrapers(ports: list[int]) -> None:
    """Ask by 100 for pages again and again, without waiting for the answers."""

    async def one(number: int) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await opened(ports[0], address_of(number, 30))
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
                while await reader.read(1 << 16):
                    pass
                writer.close()
            await asyncio.sleep(1)

    await asyncio.gather(*(one(number) for number in range(100)))


async def reconnecting(ports: list[int]) -> None:
    """Connect 1,000 clients that have no right to more, and come again for it."""
    frame = encode_request(ApiKey.PRODUCE, 9, 1, produce_values("q", batch(bytes(10_000))))
    frame = frame.replace(b"kproxy", b"greedy", 1)

    async def one(number: int) -> None:
        while True:
            with suppress(OSError, TimeoutError):
                reader, writer = await opened(ports[0], address_of(number, 40))
                writer.write(frame)
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1000), 2)
                writer.close()
            await asyncio.sleep(3)

    await asyncio.gather(*(one(number) for number in range(1000)))


async def main(kind: str, ports: list[int]) -> None:
    attack = {"silent": silent, "guesses": guesses, "scrapers": scrapers,
              "reconnecting": reconnecting}[kind]  # fmt: skip
    working = asyncio.create_task(attack(ports))
    await asyncio.sleep(1)
    print("ready", flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.read)
    working.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2:]]))
