"""A real browser: Debian's Chromium, told what to do by WebDriver, and what it shows."""

import base64
import json
import os
import re
import signal
import struct
import subprocess
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.harness import eventually

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_WAIT_S = 120
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--force-device-scale-factor=1", "--window-size=1280,900",
)  # fmt: skip


class Gone(Exception):
    """A refusal of the browser: an element is not there, or not any more."""


class Chromium:
    """A browser's window, as a person uses it."""

    def __init__(self, port: int, profile: Path) -> None:
        self._base = f"http://127.0.0.1:{port}/session"
        options = {"args": [*_FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome", "acceptInsecureCerts": True, "goog:chromeOptions": options,
        }  # fmt: skip
        made = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_WAIT_S) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            with error:
                raise Gone(json.load(error)["value"]["message"].partition("\n")[0]) from None

    def close(self) -> None:
        self._ask("DELETE", "")

    # -- a person

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def click(self, what: str) -> None:
        """Follow a link, a button or a summary by its text, and see the page that it leads to."""
        words = "normalize-space(.)"
        self._press(
            "xpath", f"//*[self::a or self::button or self::summary][{words}={_quoted(what)}]"
        )

    def press(self, css: str) -> None:
        """Follow a link or a button by a selector."""
        self._press("css selector", css)

    def _press(self, using: str, value: str) -> None:
        """Wait for an element, for a page may be on its way, and click it."""

        def clicked() -> bool:
            with suppress(Gone):
                for element in self._all(using, value)[:1]:
                    self._ask("POST", f"/element/{element}/click")
                    return True
            return False

        eventually(clicked, _WAIT_S)

    def write(self, label: str, text: str) -> None:
        """Write into the field with a label, or one that begins so, instead of what it has."""
        field = "//*[self::input or self::textarea]"
        said, words = "normalize-space(.)", _quoted(label)
        exact = f"//label[{said}={words}]{field}"
        begun = f"//label[starts-with({said}, {words})]{field}"

        def written() -> bool:
            with suppress(Gone):
                for path in (exact, begun):
                    for element in self._all("xpath", path):
                        if self._ask("GET", f"/element/{element}/displayed"):
                            self._ask("POST", f"/element/{element}/clear")
                            self._ask("POST", f"/element/{element}/value", {"text": text})
                            return True
            return False

        eventually(written, _WAIT_S)

    def _all(self, using: str, value: str) -> list[str]:
        found = self._ask("POST", "/elements", {"using": using, "value": value})
        return [one[_ELEMENT] for one in found]

    @property
    def text(self) -> str:
        """The words that show."""
        found = self.run("return document.body.innerText")
        return re.sub(r"\s+", " ", found or "")

    def sees(self, words: str, seconds: float = _WAIT_S) -> None:
        """Wait until words show, on a page that may be asked for anew meanwhile."""

        def shows() -> bool:
            with suppress(Gone):
                return words in self.text
            return False

        eventually(shows, seconds)

    @property
    def url(self) -> str:
        return str(self._ask("GET", "/url"))

    # -- what a test sees besides

    def run(self, script: str, *values: Any) -> Any:
        return self._ask("POST", "/execute/sync", {"script": script, "args": values})

    def run_later(self, script: str, *values: Any) -> Any:
        """Return what a script passes to its last argument."""
        return self._ask("POST", "/execute/async", {"script": script, "args": values})

    def scheme(self, name: str) -> None:
        """Prefer light or dark from now on."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self._tool("Emulation.setEmulatedMedia", {"features": features})

    def narrow(self, width: int | None) -> None:
        """Make the window so wide; None: as at the beginning."""
        if width is None:
            self._tool("Emulation.clearDeviceMetricsOverride", {})
            return
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self._tool("Emulation.setDeviceMetricsOverride", size)

    def cookies(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", "/cookie")
        return found

    def _tool(self, name: str, values: dict[str, Any]) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": values})

    def picture(self, css: str = "") -> bytes:
        """Return a picture of the window, or of what a selector names, as PNG."""
        path = "/screenshot"
        if css:
            path = f"/element/{self._all('css selector', css)[0]}/screenshot"
        return base64.b64decode(self._ask("GET", path))


def _quoted(text: str) -> str:
    assert "'" not in text
    return f"'{text}'"


@contextmanager
def chromium(directory: Path) -> Iterator[Chromium]:
    """Start a browser, and yield its window."""
    process = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, start_new_session=True,
        env=os.environ | {"HOME": str(directory), "TMPDIR": str(directory)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = next(line for line in process.stdout if "successfully on port" in line)
        window = Chromium(int(re.findall(r"\d+", said)[-1]), directory / "profile")
        try:
            yield window
        finally:
            window.close()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has begun
        process.wait(_WAIT_S)
        process.stdout.close()


def colours(png: bytes) -> set[bytes]:
    """Return the colours of a picture."""
    at, data, width, depth = 8, b"", 0, 3
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, bits, colour = struct.unpack(">IIBB", body[:10])
            assert bits == 8
            depth = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += body
        at += size + 12
    rows, step, found = zlib.decompress(data), width * depth, set[bytes]()
    before = bytes(step)
    for start in range(0, len(rows), step + 1):
        before = _row(rows[start], rows[start + 1 : start + 1 + step], before, depth)
        found |= {before[n : n + 3] for n in range(0, step, depth)}
    return found


def _row(kind: int, row: bytes, above: bytes, depth: int) -> bytes:
    """Return a row of a picture without its filter."""
    done = bytearray(row)
    for n in range(len(row)):
        left = done[n - depth] if n >= depth else 0
        corner = above[n - depth] if n >= depth else 0
        guess = left + above[n] - corner
        nearest = min((left, above[n], corner), key=lambda one: abs(guess - one))
        add = (0, left, above[n], (left + above[n]) // 2, nearest)[kind]
        done[n] = (row[n] + add) & 0xFF
    return bytes(done)
