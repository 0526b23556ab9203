"""Members that read very many queues: rows over 1 MB are published, trimmed behind and rebuilt."""

import shutil
from pathlib import Path

from confluent_kafka.admin import ConfigResource, ResourceType

from kproxy.protocol.api_keys import ApiKey
from tests.clients.calls import admin
from tests.harness import eventually
from tests.kafka.groups.members import Classic
from tests.on_kafka.test_setup import alter as alter_topic
from tests.on_kafka.test_setup import flags, make, refusal
from tests.on_kafka.test_storage import EAGER, fill, log_trimmed_beyond, trim
from tests.real_kafka import Kafka
from tests.workers import Workers

QUEUES = tuple(f"a-queue-of-very-many-{number}" for number in range(32_000))


def test_a_member_of_very_many_queues(kafka: Kafka, tmp_path: Path) -> None:
    """FAULT B4: the shard was never published nor trimmed again."""
    workers = Workers(kafka, tmp_path, *EAGER, count=1, shards=1)
    with workers.running():
        worker = workers.workers[0]
        with worker.wire("q") as wire:
            member = Classic(wire, "large", QUEUES)
            member.rebalance_ms = 60_000
            member.session_ms = 60_000
            assert len(member.protocols["range"]) > 850_000  # in base64 over 1 MiB
            assert eventually(lambda: member.join().error_code == 0, 20)
            assert member.sync({member.id: b"assigned"}).error_code == 0
            fill(wire, "q", 60)
            trim(wire, "q", 55)
            log_trimmed_beyond(kafka, workers, 0, 20)
            member.wire.socket.close()
        worker.kill()
        shutil.rmtree(worker.data_dir)
        again = workers.again(0).wait_ready()
        workers.wait_served()
        assert again.event("shard_rebuilt")
        with again.wire("q") as wire:
            groups = wire.call(ApiKey.DESCRIBE_GROUPS, 1, {"groups": ("large",)}).groups
            assert [m.member_id for m in groups[0].members] == [member.id]
            assert len(groups[0].members[0].member_metadata) > 850_000


def test_topics_of_an_earlier_release_take_large_rows(kafka: Kafka, tmp_path: Path) -> None:
    make(kafka, "small")
    for topic in ("small-offset", "small-queues"):
        alter_topic(kafka, topic, "max.message.bytes", "1048588")
    line = refusal(tmp_path, *flags(kafka, "small"), "--no-create")
    assert "--alter --entity-type topics --entity-name small-offset" in line
    assert "--add-config max.message.bytes=11534336" in line
    with Workers(kafka, tmp_path, count=1, shards=2, prefix="small").running():
        resource = ConfigResource(ResourceType.TOPIC, "small-offset")
        client = admin(kafka.address)
        found = client.describe_configs([resource])[resource].result()
        assert found["max.message.bytes"].value == "11534336"
