"""Workers on a real Kafka with a relay on each link: client to worker, worker to each broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness import Served, free_port
from tests.network.relay import Relay
from tests.real_kafka import Kafka
from tests.workers import Workers

WORKERS = 2


class Broker:
    """A broker with a listener for each worker, which it advertises as the relay before it."""

    def __init__(self, directory: Path, beside: "Broker | None" = None) -> None:
        """Take `beside`: the first broker of the cluster that it is the second of."""
        directory.mkdir()
        ports = [free_port() for _ in range(WORKERS)]
        self.relays = [Relay(port) for port in ports]
        names = [f"W{number}" for number in range(WORKERS)]
        listeners = ",".join(
            f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)
        )
        advertised = ",".join(
            f"{name}://{one.address}" for name, one in zip(names, self.relays, strict=True)
        )
        plain = ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names))
        own = "CONTROLLER://127.0.0.1:CONTROLLER_AT,"
        second = ""
        if beside is not None:
            voter = f"1@127.0.0.1:{beside.kafka.controller}"
            own = ""
            second = f"process.roles=broker\nnode.id=2\ncontroller.quorum.voters={voter}"
        self.kafka = Kafka(
            directory,
            cluster=None if beside is None else beside.kafka.cluster,
            more=f"""
listeners=PLAINTEXT://127.0.0.1:PORT,{own}{listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:PORT,{advertised}
listener.security.protocol.map={plain}
broker.session.timeout.ms=3000
{second}
""",
        )

    def close(self) -> None:
        self.kafka.stop()
        for relay in self.relays:
            relay.close()


class RelayedWorkers(Workers):
    """Workers whose clients and brokers they reach, and are reached by, through relays alone."""

    def __init__(
        self, brokers: list[Broker], directory: Path, *flags: str, shards: int = 8,
        prefix: str | None = None,
    ) -> None:  # fmt: skip
        self.brokers = brokers
        self.to_worker: list[Relay] = []
        super().__init__(
            brokers[0].kafka, directory, *flags, count=WORKERS, shards=shards, prefix=prefix
        )

    def to_brokers(self, index: int) -> list[Relay]:
        """Return the relays between a worker and the brokers."""
        return [broker.relays[index] for broker in self.brokers]

    def start(self, index: int) -> Served:
        if index == len(self.to_worker):
            self.to_worker.append(Relay(self.ports[index]))
        servers = ",".join(relay.address for relay in self.to_brokers(index))
        own = ("--bootstrap-servers", servers, "--advertise", self.to_worker[index].address)
        return Served(
            self.directory / f"worker-{index}", *self.flags, *own, port=self.ports[index],
            env=self.env,
        )  # fmt: skip

    @property
    def relays(self) -> list[Relay]:
        return [*self.to_worker, *(one for broker in self.brokers for one in broker.relays)]

    @property
    def address(self) -> str:
        return ",".join(relay.address for relay in self.to_worker)

    @contextmanager
    def running(self, seconds: float = 60) -> Iterator["RelayedWorkers"]:
        try:
            with super().running(seconds):
                yield self
                self.heal()
        finally:
            for relay in self.to_worker:
                relay.close()

    def heal(self) -> None:
        for relay in self.relays:
            relay.heal()
