"""The guard held against kio: what it admits, kio reads to the same end, and lives.

kio decodes in a process of its own: a count that nobody checked ends that one, not the tests.
"""

import multiprocessing
import random
import resource
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from kio.serial import entity_reader

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import admit_body, decode_header, request_schema
from kproxy.protocol.element_reader import sliced_reader
from kproxy.protocol.varint import Malformed, uvarint
from tests.generator import VERSIONS, Writer, mutated, request, values_of

SEED = 20_261_123
MEMORY_BYTES = 4 << 30
MANY = 500


class Case(NamedTuple):
    """An admitted request: kio is to read `size` bytes of `data`, from `position` on."""

    key: int
    version: int
    data: bytes
    position: int
    size: int


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def unlike(cases: list[Case]) -> list[tuple[Case, int]]:
    """Return the cases of which kio reads another number of bytes, or in slices another value.

    Refusing is no difference.
    """
    found = []
    for case in cases:
        schema = request_schema(case.key, case.version)
        try:
            value, size = entity_reader(schema)(case.data, case.position)
        except Exception:
            continue
        sliced = sliced_reader(schema)(case.data, case.position)
        same = sliced == (value, size) or repr(sliced) == repr((value, size))  # nan is not nan
        if size != case.size or not same:
            found.append((case, size))
    return found


@contextmanager
def reading() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=limit_memory) as pool:
        yield pool


def fatal(cases: list[Case]) -> str:
    """Return the request that ends the process that decodes it."""
    for case in cases:
        try:
            with reading() as pool:
                pool.submit(unlike, [case]).result()
        except BrokenProcessPool:
            return f"key {case.key} version {case.version}: {case.data[case.position :].hex()}"
    return "none of them alone"


def hold(cases: list[Case]) -> None:
    with reading() as pool:
        for start in range(0, len(cases), MANY):
            some = cases[start : start + MANY]
            try:
                found = pool.submit(unlike, some).result()
            except BrokenProcessPool:
                pytest.fail(f"kio ended its process at {fatal(some)}")
            assert not found


def admitted(frame: bytes) -> Case | None:
    try:
        header = decode_header(frame)
        if header.body_at < 0 or (header.api_key, header.api_version) not in VERSIONS:
            return None
        kept = admit_body(frame, header, 100_000)
    except Malformed:
        return None
    size = kept.end - kept.position
    return Case(header.api_key, header.api_version, kept.data, kept.position, size)


def generated(seed: int, rounds: int) -> Iterator[Case]:
    for number in range(rounds):
        for key, version in VERSIONS:
            rng = random.Random(f"{seed}-{number}-{key}-{version}")
            straying = rng.choice((0.0, 0.02, 0.1, 0.3))
            values = values_of(rng, request_schema(key, version), [])
            frame = request(key, version, values, Writer(rng, straying))
            if rng.random() < 0.5:
                frame = mutated(rng, frame)
            case = admitted(frame)
            if case is not None:
                yield case


def test_sound_requests_are_admitted_as_they_are() -> None:
    for key, version in VERSIONS:
        rng = random.Random(SEED)
        frame = request(key, version, values_of(rng, request_schema(key, version), []))
        case = admitted(frame)
        assert case is not None, (key, version)
        assert case.position + case.size == len(frame)


def test_kio_reads_admitted_requests_to_the_same_end() -> None:
    cases = list(generated(SEED, 12))
    assert len(cases) > 500
    hold(cases)


@pytest.mark.long
def test_kio_reads_admitted_requests_to_the_same_end_however_often() -> None:
    for part in range(20):
        hold(list(generated(SEED + 1 + part, 30)))


PARTITION = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}


@pytest.mark.parametrize("more", [-1, 0, 1, 8, 200])
@pytest.mark.parametrize("where", ["partition", "top"])
def test_a_known_tag_of_another_size_than_its_value(more: int, where: str) -> None:
    """kio goes by the value: it would read what the size hides as counts that nobody checked."""
    value = bytes(16) if where == "partition" else b"\x05here"
    padding = bytes([0x7F]) * max(0, more)
    tags = b"\x01\x00" + uvarint(len(value) + more) + value + padding
    topic = {"topic_id": None, "partitions": [PARTITION]}
    values = {"topics": [topic] if where == "partition" else []}
    frame = request(ApiKey.FETCH, 17, values)
    behind = 5 if where == "partition" else 1  # the topic's tags, no forgotten topics, rack, tags
    frame = frame[:-behind] + tags + frame[len(frame) + 1 - behind :]
    case = admitted(frame)
    assert (case is not None) == (more == 0)
    if case is not None:
        hold([case])
