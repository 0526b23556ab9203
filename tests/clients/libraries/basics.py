"""The ordinary life of a topic, by what kafka-python has had since 2.0.

python basics.py ADDRESS TOPIC       what each step gives, a line each
"""

import sys

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, __version__
from kafka.admin import NewTopic

_WAIT_MS = 30_000


def main(address: str, topic: str) -> None:
    print(f"version={__version__}")
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(topic, 1, 1)])
    producer = KafkaProducer(bootstrap_servers=address, compression_type="gzip", acks="all")
    for number in range(6):
        producer.send(topic, key=b"k", value=b"v%d" % number).get(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest",
        enable_auto_commit=False, consumer_timeout_ms=_WAIT_MS,
    )  # fmt: skip
    seen = [next(consumer).value.decode() for _ in range(6)]
    consumer.commit()
    partition = TopicPartition(topic, 0)
    print(f"consumed={','.join(seen)}")
    print(f"end={consumer.end_offsets([partition])[partition]}")
    print(f"committed={consumer.committed(partition)}")
    consumer.close()
    admin.delete_topics([topic])
    admin.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
