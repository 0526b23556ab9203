"""Numbers and texts at the edges of what they may be, as a real Kafka 4.3.1 takes them."""

from collections.abc import Iterator
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.alike import alike, made
from tests.wire import TODAY_MS, Wire, batch


def produced(wire: Wire, queue: str, records: bytes) -> tuple[int, int]:
    answer = wire.produce(queue, records)
    return int(answer.error_code), answer.base_offset


@alike
def test_sequences_and_epochs_of_producers(wire: Wire, name: str) -> list[Any]:
    steps: list[Any] = []
    wrapping = [(2**31 - 2, 2), (0, 1), (2**31 - 1, 1), (2**31 - 2, 2), (1, 3)]
    over = [(2**31 - 2, 5), (3, 1), (2**31 - 2, 5)]
    moving = [
        (7, 1), (8, 1), (8, 1), (7, 1), (10, 1), (9, 3), (9, 3), (9, 2), (10, 2), (0, 1, 1),
        (5, 1, 2), (0, 1, 2), (1, 1, 2), (12, 1, 0), (0, 1, 2), (1, 2, 2),
    ]  # fmt: skip
    remembered = [(number, 1) for number in (*range(8), *range(8))]
    for kind, batches in enumerate((wrapping, over, moving, remembered)):
        queue = f"{name}-{kind}"
        made(wire, queue)
        producer = wire.producer_id()
        for sequence, count, *epoch in batches:
            records = batch(
                *[b"v"] * count, producer_id=producer, sequence=sequence,
                epoch=epoch[0] if epoch else 0,
            )  # fmt: skip
            steps.append((kind, sequence, count, produced(wire, queue, records)))
    for number, epoch in enumerate((-1, -2, -5, 32767)):
        queue = f"{name}-epoch-{number}"
        made(wire, queue)
        records = batch(b"v", producer_id=wire.producer_id(), epoch=epoch, sequence=0)
        steps.append((epoch, produced(wire, queue, records), produced(wire, queue, records)))
    return steps


@alike
def test_times_and_offsets_asked_for(wire: Wire, queue: str) -> list[Any]:
    now = TODAY_MS

    def listed(wire: Wire, queue: str) -> Iterator[Any]:
        for asked in (*range(-8, 1), -100, now - 500, now, now + 1, 2**63 - 1, -(2**63)):
            for version in (1, 5, 7, 8, 9, 10, 11):
                answer = wire.list_offset(queue, asked, version=version)
                yield asked, version, int(answer.error_code), answer.offset

    made(wire, queue)
    produced(wire, queue, batch(b"a", b"b", times=(now, now - 1000)))
    produced(wire, queue, batch(b"c", times=(-1,)))
    steps = list(listed(wire, queue))
    for offset in (-2, -(2**63), 4, 2**63 - 1, 2, 1, 0, -1, 3):
        values = {
            "topics": [{
                "name": queue, "partitions": [{"partition_index": 0, "offset": offset}],
            }],
            "timeout": 5000,
        }  # fmt: skip
        (answer,) = wire.call(ApiKey.DELETE_RECORDS, 2, values).topics[0].partitions
        steps.append((offset, int(answer.error_code), answer.low_watermark))
    for offset in (-1, 0, 2, 3, 4, 2**63 - 1):
        fetched = wire.fetch(queue, offset)
        steps.append((offset, int(fetched.error_code), fetched.high_watermark))
    return steps


@alike
def test_names_and_settings(wire: Wire, queue: str) -> list[Any]:
    values = {
        "retention.ms": ("1_000", " 5 ", "+5", "-2", "1e3", "", "\u0661", "9" * 30),
        "max.message.bytes": ("-1", "2147483648"),
        "cleanup.policy": ("DELETE", "delete,delete", " delete"),
        "message.timestamp.type": ("createtime",),
        "nonsense": ("1",),
    }
    steps: list[Any] = []
    for number, (name, value) in enumerate((n, v) for n, of in values.items() for v in of):
        topic = wire.create(f"{queue}-{number}", **{name.replace(".", "_"): value})
        steps.append((name, value, int(topic.error_code)))
    odd = ("..x", "x" * (249 - len(queue)), "x" * (250 - len(queue)), "a b", "\u00e4")
    for name in ("", ".", "..", *(queue + tail for tail in odd)):
        steps.append((len(name), int(wire.create(name).error_code)))
    for count in (0, -1, -2, 20_000):
        steps.append((count, int(wire.create(f"{queue}-parts{count}", count).error_code)))
    return steps
