"""Fixtures of the tests in a real browser, which are `long`; without Chromium they are left out."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from kproxy.console import history
from tests.browser.chromium import Chromium, chromium
from tests.console.serving import Browser, console
from tests.harness import ROOT, Served, need_program, served

PICTURES = ROOT / "docs" / "console"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    need_program("chromedriver")
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a kproxy of the module's own: pictures show all that it has."""
    with served(tmp_path_factory.mktemp("served") / "data") as found:
        yield found


@pytest.fixture(scope="module")
def shown(own: Served) -> Iterator[Browser]:
    """Return a console that looks at its worker all the time."""
    (listen,) = (one["listen"] for one in own.events if one["event"] == "http_ready")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(history, "EVERY_S", 0.3)
        with console((own.host, own.port), http=(listen,)) as browser:
            yield browser


@pytest.fixture
def keep(request: pytest.FixtureRequest, window: Chromium) -> Callable[[str], None]:
    """Return a function that takes a picture; with --record it becomes the document's."""
    folder = PICTURES if request.config.getoption("--record") else ROOT / "build" / "console"

    def take(name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        Path(folder / f"{name}.png").write_bytes(window.picture())

    return take
