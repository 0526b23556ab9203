"""What operators' tools ask of a worker."""

from pathlib import Path

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.server.dispatch import accept, answer
from kproxy.worker.worker import NextRequestSignal
from tests.fakes import memory_worker


async def test_where_the_data_directory_lies_is_told_nobody(tmp_path: Path) -> None:
    """Of its path, the last part is enough to tell one worker's from another's."""
    directory = tmp_path / "worker-3"
    directory.mkdir()

    async def ask() -> bytes:
        worker = memory_worker(data_dir=directory)
        frame = encode_request(ApiKey.DESCRIBE_LOG_DIRS, 4, 1, {"topics": None})[4:]
        return bytes(await answer(worker, accept(worker, frame, "", NextRequestSignal())))  # type: ignore[arg-type]

    _, body = decode_response(35, 4, (await ask())[4:])
    assert [result.log_dir for result in body.results] == ["worker-3"]
    assert body.results[0].total_bytes > 0
