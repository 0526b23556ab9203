"""The questions of operators' tools to a worker."""

import re
from pathlib import Path

from kproxy.common.errors import Code
from kproxy.config.server import Config
from kproxy.handlers.configs.server_settings import of_broker
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.security.peer import Peer
from kproxy.server.dispatch import accept, answer
from kproxy.virtual.levels import TRANSACTIONS_FROM
from kproxy.worker.request import NextRequestSignal
from tests.fakes import memory_worker
from tests.handlers.test_handlers import Client


async def test_path_of_the_data_directory_is_told_nobody(tmp_path: Path) -> None:
    """The last part of its path is enough to tell one worker's from another's."""
    directory = tmp_path / "worker-3"
    directory.mkdir()

    async def ask() -> bytes:
        worker = memory_worker(data_dir=directory)
        frame = encode_request(ApiKey.DESCRIBE_LOG_DIRS, 4, 1, {"topics": None})[4:]
        return bytes(await answer(worker, accept(worker, frame, Peer(), NextRequestSignal())))  # type: ignore[arg-type]

    _, body = decode_response(35, 4, (await ask())[4:])
    assert [result.log_dir for result in body.results] == ["worker-3"]
    assert body.results[0].total_bytes > 0


def test_meaning_of_a_server_setting_is_told_without_the_one_before_it() -> None:
    """FAULT: clients saw `Partitions of a queue created so.` for num.partitions."""
    told = {one.name: one.documentation for one in of_broker(Config(), 1)}
    behind = re.compile(r"\b(such|created so|this silence|its heartbeats)\b")
    assert "num.partitions" in told
    assert {name: text for name, text in told.items() if behind.search(text)} == {}


async def test_the_version_of_transactions_comes_with_the_level() -> None:
    client = Client()

    async def asked(version: int, level: int) -> int:
        client.worker.level.value = level
        update = {
            "feature": "transaction.version", "max_version_level": version,
            "allow_downgrade": False, "upgrade_type": 1,
        }  # fmt: skip
        values = {"timeout_ms": 1000, "timeout": 1000, "feature_updates": (update,)}
        return int((await client.call(ApiKey.UPDATE_FEATURES, 1, values)).error_code)

    assert await asked(2, TRANSACTIONS_FROM) == 0
    assert await asked(1, TRANSACTIONS_FROM) == Code.INVALID_UPDATE_VERSION
    assert await asked(2, TRANSACTIONS_FROM - 1) == Code.INVALID_UPDATE_VERSION
