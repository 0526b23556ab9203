"""Work of a loop that others wait for."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from kproxy.observe.on_loop import OnLoop
from tests.harness import eventually


def test_nobody_waits_for_a_loop_that_waits_for_them() -> None:
    """FAULT: a scrape and the end of the process waited for each other, for two seconds."""
    loop, pages = asyncio.new_event_loop(), OnLoop()
    pages.attach(loop)

    async def work() -> int:
        return 1

    with ThreadPoolExecutor(1) as scraping:
        page = scraping.submit(pages.gathered, work, 60)
        eventually(lambda: pages._waited_for)
        pages.end()  # the loop does nothing else meanwhile
        assert page.result(30) is None
        assert scraping.submit(pages.gathered, work, 60).result(30) is None
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
