"""Each line of docs/tools.md, run as it stands there."""

import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from tests.harness import KAFKA_JAVA, KAFKA_LIBS, ROOT, eventually
from tests.workers import Site

TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "kafka-topics": f"{TOOLS}TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-producer-perf-test": f"{TOOLS}ProducerPerformance",
    "kafka-verifiable-producer": f"{TOOLS}VerifiableProducer",
    "kafka-console-producer": f"{TOOLS}ConsoleProducer",
    "kafka-console-consumer": f"{TOOLS}consumer.ConsoleConsumer",
    "kafka-verifiable-consumer": f"{TOOLS}VerifiableConsumer",
    "kafka-consumer-perf-test": f"{TOOLS}ConsumerPerformance",
    "kafka-verifiable-share-consumer": f"{TOOLS}VerifiableShareConsumer",
    "kafka-console-share-consumer": f"{TOOLS}consumer.ConsoleShareConsumer",
    "kafka-share-consumer-perf-test": f"{TOOLS}ShareConsumerPerformance",
    "kafka-e2e-latency": f"{TOOLS}EndToEndLatency",
    "kafka-get-offsets": f"{TOOLS}GetOffsetShell",
    "kafka-consumer-groups": f"{TOOLS}consumer.group.ConsumerGroupCommand",
    "kafka-share-groups": f"{TOOLS}consumer.group.ShareGroupCommand",
    "kafka-groups": f"{TOOLS}GroupsCommand",
    "kafka-delete-records": f"{TOOLS}DeleteRecordsCommand",
    "kafka-log-dirs": f"{TOOLS}LogDirsCommand",
    "kafka-leader-election": f"{TOOLS}LeaderElectionCommand",
    "kafka-reassign-partitions": f"{TOOLS}reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": f"{TOOLS}ReplicaVerificationTool",
    "kafka-cluster": f"{TOOLS}ClusterTool",
    "kafka-broker-api-versions": f"{TOOLS}BrokerApiVersionsCommand",
    "kafka-features": f"{TOOLS}FeatureCommand",
    "kafka-metadata-quorum": f"{TOOLS}MetadataQuorumCommand",
    "kafka-transactions": f"{TOOLS}TransactionsCommand",
    "kafka-client-metrics": f"{TOOLS}ClientMetricsCommand",
    "kafka-streams-groups": f"{TOOLS}streams.StreamsGroupCommand",
    "kafka-streams-application-reset": f"{TOOLS}StreamsResetter",
    "kafka-acls": f"{TOOLS}AclCommand",
    "kafka-delegation-tokens": f"{TOOLS}DelegationTokenCommand",
}
ELSEWHERE = {"connect-distributed", "connect-standalone", "connect-mirror-maker"}
"""Their tests are in tests/frameworks."""
SAID = {
    "kafka-topics": "Created topic user-42",
    "kafka-configs": "Completed updating config for ",
    "kafka-producer-perf-test": "1000 records sent",
    "kafka-verifiable-producer": '"sent":100,"acked":100',
    "kafka-console-consumer": "Processed a total of 1000 messages",
    "kafka-verifiable-consumer": "offsets_committed",
    "kafka-consumer-perf-test": "data.consumed.in.MB",
    "kafka-verifiable-share-consumer": "offsets_acknowledged",
    "kafka-console-share-consumer": "Processed a total of 100 messages",
    "kafka-share-consumer-perf-test": "data.consumed.in.MB",
    "kafka-e2e-latency": "Percentiles:",
    "kafka-get-offsets": "user-42:0:",
    "kafka-consumer-groups": "CURRENT-OFFSET",
    "kafka-share-groups": "START-OFFSET",
    "kafka-groups": "checkers",
    "kafka-delete-records": "low_watermark: 10",
    "kafka-log-dirs": '"partition":"user-42-0"',
    "kafka-leader-election": "Valid replica already elected",
    "kafka-reassign-partitions": "is completed",
    "kafka-replica-verification": "max lag is 0",
    "kafka-cluster": "Cluster ID:",
    "kafka-broker-api-versions": "ConsumerGroupHeartbeat(68): 0 to 1",
    "kafka-features": "kproxy.level",
    "kafka-metadata-quorum": "LeaderId:",
    "kafka-transactions": "TransactionalId",
    "kafka-streams-application-reset": "user-42",
    "kafka-acls": "SecurityDisabledException",
    "kafka-delegation-tokens": "",
}
"""The lines that a tool prints among others."""
WITHOUT_ADDRESS = {"kafka-replica-verification", "kafka-cluster"}
ENDLESS = {"kafka-replica-verification"}


class Line(NamedTuple):
    """A row of the table."""

    tool: str
    arguments: list[str]
    refused: bool


def lines() -> list[Line]:
    """Return the lines of the table."""
    found = []
    for row in (ROOT / "docs" / "tools.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if row.startswith("| `") and len(cells) == 3:
            arguments = cells[1].strip("`").split()
            for tool in re.findall(r"`([^`]+)`", cells[0]):
                found.append(Line(tool, arguments, cells[2].startswith("refused")))
    return found


def run(line: Line, address: str, here: Path) -> None:
    arguments = [one.replace("127.0.0.1:9092", address) for one in line.arguments]
    if line.tool not in WITHOUT_ADDRESS:
        arguments = ["--bootstrap-server", address, *arguments]
    command = [
        "java", "-Xmx256m", *KAFKA_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp", f"{KAFKA_LIBS}/*", CLASSES[line.tool], *arguments,
    ]  # fmt: skip
    wanted = SAID.get(line.tool, "")
    if line.tool in ENDLESS:
        with (here / line.tool).open("w+") as out:
            process = subprocess.Popen(command, cwd=here, stdout=out, stderr=out)
            try:
                eventually(lambda: wanted in (here / line.tool).read_text(), 60)
            finally:
                process.kill()
                process.wait(30)
        return
    done = subprocess.run(
        command, cwd=here, capture_output=True, text=True, timeout=90, input="a\nb\n", check=False
    )
    said = done.stdout + done.stderr
    assert wanted in said, (line, said[-3000:])
    assert line.refused or done.returncode == 0, (line, said[-3000:])


def test_every_tool(site: Site, tmp_path: Path) -> None:
    assert {line.tool for line in lines()} == CLASSES.keys() | ELSEWHERE
    records = {"topic": "user-42", "partition": 0, "offset": 10}
    (tmp_path / "records.json").write_text(json.dumps({"partitions": [records], "version": 1}))
    (tmp_path / "empty.properties").write_text("")
    for line in lines():
        if line.tool in CLASSES:
            if line.tool == "kafka-reassign-partitions":
                moves = {"version": 1, "partitions": [place(site)]}
                (tmp_path / "moves.json").write_text(json.dumps(moves))
            run(line, site.address, tmp_path)


def place(site: Site) -> dict[str, object]:
    """Return the broker of the first partition."""
    admin = AdminClient({"bootstrap.servers": site.address, "log_level": 0})
    part = admin.list_topics("user-42", timeout=20).topics["user-42"].partitions[0]
    return {"topic": "user-42", "partition": 0, "replicas": [part.leader]}
