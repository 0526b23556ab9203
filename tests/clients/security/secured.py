"""The sites that clients log in to: an embedded kproxy, and two workers on a Kafka."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.harness import eventually
from tests.real_kafka import Kafka
from tests.securing import Site

KINDS = "embedded", "on Kafka"


@contextmanager
def running(kind: str, directory: Path, login_ms: int = 4000) -> Iterator[Site]:
    """Run a site with a user alice, whose login lasts so long."""
    lasts = (
        "--connections-max-reauth-ms", str(login_ms), "--group-initial-rebalance-delay-ms", "200",
    )  # fmt: skip
    if kind == "embedded":
        site = Site(directory)
        with site.running(*lasts):
            site.add_user("alice")
            yield site
        return
    kafka = Kafka(directory).wait_ready()
    try:
        site = Site(directory, workers=2)
        flags = (
            "--bootstrap-servers", kafka.address, "--workers", "2", "--shards", "8",
            "--allow-single-replica", "--drain-ms-max", "0",
        )  # fmt: skip
        with site.running(*flags, *lasts):
            admin = AdminClient(site.librdkafka("INSIDE"))
            eventually(lambda: len(admin.describe_cluster().result().nodes) == 2, 30)
            eventually(lambda: _added(site), 30)
            yield site
    finally:
        kafka.stop()


def _added(site: Site) -> bool:
    try:
        site.add_user("alice")
    except AssertionError:  # shard 0 has no owner yet
        return False
    return True
