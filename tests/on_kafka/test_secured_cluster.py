"""Workers on a Kafka that asks for TLS, a login and permissions: with the least that docs name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from tests.harness import ROOT, free_port, served
from tests.real_kafka import Kafka
from tests.securing import Authority
from tests.wire import batch

PREFIX = "kproxy"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
OPERATIONS = {
    ("TOPIC", f"{PREFIX}-"): "CREATE READ WRITE DESCRIBE DELETE DESCRIBE_CONFIGS",
    ("GROUP", f"{PREFIX}-"): "READ",
    ("TRANSACTIONAL_ID", f"{PREFIX}-"): "WRITE DESCRIBE",
}
"""The rules by prefix; docs/security.md says the same."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kafka, Path]]:
    """Yield a Kafka, and a file of client settings of a user who may do just enough."""
    directory = tmp_path_factory.mktemp("kafka")
    authority = Authority(directory / "certificates")
    issued = authority.authority.issue_cert("localhost", "127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    store = directory / "store.pem"
    store.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + b"".join(one.bytes() for one in issued.cert_chain_pems)
    )  # fmt: skip
    port = free_port()
    kafka = Kafka(
        directory,
        more=f"""
listeners=PLAINTEXT://127.0.0.1:PORT,CONTROLLER://127.0.0.1:CONTROLLER_AT,SECURE://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:PORT,SECURE://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.secure.scram-sha-512.sasl.jaas.config={JAAS}
ssl.keystore.type=PEM
ssl.keystore.location={store}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
""",
    ).wait_ready()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("worker", info, b"secret")
        for future in admin.alter_user_scram_credentials([user]).values():
            future.result()
        bindings = [
            AclBinding(
                ResourceType[kind], prefix, ResourcePatternType.PREFIXED, "User:worker", "*",
                AclOperation[operation], AclPermissionType.ALLOW,
            )
            for (kind, prefix), operations in OPERATIONS.items()
            for operation in operations.split()
        ]  # fmt: skip
        for created in admin.create_acls(bindings).values():
            created.result()
        settings = directory / "kafka.properties"
        settings.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=worker\n"
            f"sasl.password=secret\nssl.ca.location={authority.ca}\n"
        )
        kafka.secure = f"127.0.0.1:{port}"  # type: ignore[attr-defined]
        yield kafka, settings
    finally:
        kafka.stop()


def test_a_worker_with_the_least_permissions(kafka: tuple[Kafka, Path], tmp_path: Path) -> None:
    """Set up, write, read, publish, restart, trim: nothing is refused by the cluster."""
    broker, settings = kafka
    flags = (
        "--bootstrap-servers", broker.secure, "--kafka-config", str(settings),  # type: ignore[attr-defined]
        "--topic-prefix", PREFIX, "--shards", "4", "--allow-single-replica", "--drain-ms-max", "0",
        "--publish-ms", "500",
    )  # fmt: skip
    for restart in range(2):
        with served(tmp_path / "data", *flags) as server:
            with server.wire("q") as wire:
                assert wire.create(f"q{restart}").error_code == 0
                for _ in range(50):
                    assert wire.produce(f"q{restart}", batch(b"v" * 1000)).error_code == 0
                assert wire.fetch("q0", 0).error_code == 0
                assert wire.delete(f"q{restart}").error_code == 0 if restart else True
            log = "".join(server.raw)
            for word in ("AUTHORIZATION", "authorization", "secret"):
                assert word not in log, [line for line in server.raw if word in line][:3]


def test_documented() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    for operations in OPERATIONS.values():
        assert operations.replace(" ", ", ") in text
