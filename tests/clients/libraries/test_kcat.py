"""kcat, which on Debian links librdkafka 2.0.2: an old client."""

import json
import subprocess

import pytest

from tests.harness import need_program
from tests.workers import Site


def kcat(site: Site, *arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [need_program("kcat"), "-b", site.address, *arguments],
        input=stdin, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_in_and_out(site: Site, codec: str) -> None:
    lines = "".join(f"key{i}:value{i}\n" for i in range(300))
    queue = f"kcat-{codec}"
    kcat(site, "-P", "-t", queue, "-K:", "-z", codec, stdin=lines)
    assert kcat(site, "-C", "-t", queue, "-e", "-q", "-K:") == lines
    tail = kcat(site, "-C", "-t", queue, "-e", "-q", "-o", "-5", "-f", "%o,")
    assert tail == "295,296,297,298,299,"


def test_list_and_query(site: Site) -> None:
    kcat(site, "-P", "-t", "kcat-listed", stdin="a\nb\n")
    listing = json.loads(kcat(site, "-L", "-J", "-t", "kcat-listed"))
    assert listing["topics"][0]["topic"] == "kcat-listed"
    assert kcat(site, "-Q", "-t", "kcat-listed:0:-1").strip().endswith("offset 2")


def test_old_librdkafka_still_compresses(site: Site) -> None:
    """Advertising Produce only from 3 would make it stop silently (librdkafka issue 4956)."""
    from tests.wire import batches

    kcat(site, "-P", "-t", "kcat-packed", "-z", "gzip", stdin="x" * 5000 + "\n")
    with site.wire("kcat-packed") as wire:
        stored = batches(wire.fetch("kcat-packed", 0).records)
    assert stored[0][1][22] & 7 == 1
    assert len(stored[0][1]) < 500
