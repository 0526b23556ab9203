"""A kproxy with several listeners, certificates, users and tokens, for tests."""

import base64
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from kproxy.protocol.codec import encode_request
from kproxy.security import scram
from tests.harness import Served, free_port, served
from tests.wire import Wire

ISSUER, AUDIENCE = "https://issuer.example", "kproxy"
PARTNER, PARTNERS_AUDIENCE = "https://partner.example", "queues"
PASSWORD = 'p=,ä "x'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LOGINS = (*MECHANISMS, "OAUTHBEARER", "certificate")
"""All ways that a client has to say who it is."""


class Authority:
    """Certificates for servers and clients, in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.server = self.issue("server", "localhost", "127.0.0.1")

    def issue(self, name: str, *identities: str, **more: Any) -> Path:
        """Issue a chain and its key in one file."""
        path = self.directory / f"{name}.pem"
        made = self.authority.issue_cert(*identities, **more)
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        # As Java wants it.
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + b"".join(one.bytes() for one in made.cert_chain_pems)
        )
        return path

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Return a client's context."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


class Issuer:
    """Signs tokens, and tells its keys in a file."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.key = rsa.generate_private_key(65537, 2048)
        self.path = directory / "jwks.json"
        self.publish()

    def publish(self, name: str = "one") -> None:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        self.path.write_text(json.dumps({"keys": [{**public, "kid": name, "use": "sig"}]}))

    def token(self, subject: str, seconds: float = 300, **more: Any) -> str:
        now = int(time.time())
        claims = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + seconds}
        return jwt.encode(claims | more, self.key, "RS256", headers={"kid": "one"})


class Site:
    """A kproxy with a listener of each kind: `port` by name."""

    NAMES = ("INSIDE", "TLS", "MUTUAL", "SASL", "OUTSIDE")

    def __init__(self, directory: Path, workers: int = 1) -> None:
        self.directory = directory
        self.authority = Authority(directory / "certificates")
        self.carls = self.authority.issue("carl", "carl", common_name="carl")
        self.issuer = Issuer(directory / "issuer")
        self.partner = Issuer(directory / "partner")
        first = free_port(len(self.NAMES) * workers)
        self.port = {name: first + number * workers for number, name in enumerate(self.NAMES)}
        self.config = directory / "kproxy.toml"
        self.config.write_text(self.listeners())
        self.server: Served

    def listeners(self) -> str:
        tls = f'certificate = "{self.authority.server}"'
        ca = f'client_ca = "{self.authority.ca}"'
        sasl = f"""
        sasl_mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
        oauth_jwks = "{self.issuer.path}"
        oauth_issuer = "{ISSUER}"
        oauth_audience = "{AUDIENCE}"
        [[listeners.oauth_issuers]]
        issuer = "{PARTNER}"
        jwks = "{self.partner.path}"
        audience = "{PARTNERS_AUDIENCE}"
        principal_prefix = "partner-"
        """
        rules = "principal_rules = ['RULE:^CN=(.*?),.*$/$1/L', 'DEFAULT']"
        kinds = {
            "INSIDE": "", "TLS": f'protocol = "SSL"\n{tls}',
            "MUTUAL": f'protocol = "SSL"\n{tls}\n{ca}\nclient_auth = "required"\n{rules}',
            "SASL": f'protocol = "SASL_PLAINTEXT"\n{sasl}',
            "OUTSIDE": f'protocol = "SASL_SSL"\n{tls}\n{sasl}',
        }  # fmt: skip
        return "\n".join(
            f'[[listeners]]\nname = "{name}"\nlisten = "127.0.0.1:{self.port[name]}"\n'
            f'advertise = "localhost:{self.port[name]}"\n{more}'
            for name, more in kinds.items()
        )

    @contextmanager
    def running(self, *flags: str, **options: Any) -> Iterator["Site"]:
        data = self.directory / "data"
        with served(data, "--config", str(self.config), *flags, **options) as self.server:
            yield self

    def address(self, name: str) -> str:
        return f"localhost:{self.port[name]}"

    def wire(self, name: str, certificate: Path | None = None) -> Wire:
        """Return a connection by a listener, encrypted where that is; not logged in."""
        wire = Wire("127.0.0.1", self.port[name])
        if name in ("TLS", "MUTUAL", "OUTSIDE"):
            context = self.authority.context(certificate)
            wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
        return wire

    def add_user(self, name: str, password: str = PASSWORD) -> None:
        with self.wire("INSIDE") as wire:
            assert put_user(wire, name, password) == {name: 0}

    def librdkafka(self, name: str, mechanism: str = "", user: str = "alice") -> dict[str, Any]:
        """Return settings of a client that comes by a listener."""
        settings: dict[str, Any] = {"bootstrap.servers": self.address(name)}
        protocol = {"TLS": "SSL", "MUTUAL": "SSL", "SASL": "SASL_PLAINTEXT",
                    "OUTSIDE": "SASL_SSL"}.get(name, "PLAINTEXT")  # fmt: skip
        settings["security.protocol"] = protocol
        if protocol.endswith("SSL"):
            settings["ssl.ca.location"] = str(self.authority.ca)
        if mechanism:
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user,
                         "sasl.password": PASSWORD}  # fmt: skip
        return settings


def put_user(wire: Wire, name: str, password: str, iterations: int = 4096) -> dict[str, int]:
    """Put a user; return codes by user."""
    upsertions = []
    for number, mechanism in ((1, "SCRAM-SHA-256"), (2, "SCRAM-SHA-512")):
        hashed = scram.salted(mechanism, password.encode(), b"salt", iterations)
        upsertions.append({"name": name, "mechanism": number, "iterations": iterations,
                           "salt": b"salt", "salted_password": hashed})  # fmt: skip
    return altered(wire, upsertions=upsertions)


def altered(wire: Wire, deletions: Any = (), upsertions: Any = ()) -> dict[str, int]:
    answer = wire.call(51, 0, {"deletions": deletions, "upsertions": upsertions})
    return {result.user: int(result.error_code) for result in answer.results}


def handshake(wire: Wire, mechanism: str, version: int = 1) -> Any:
    return wire.call(17, version, {"mechanism": mechanism})


def authenticate(wire: Wire, token: bytes, version: int = 2) -> Any:
    return wire.call(36, version, {"auth_bytes": token})


def log_in(
    wire: Wire, mechanism: str = "SCRAM-SHA-256", user: str = "alice", password: str = PASSWORD
) -> Any:
    """Log in; return the last answer."""
    assert handshake(wire, mechanism).error_code == 0
    if mechanism == "PLAIN":
        return authenticate(wire, plain(user, password))
    if mechanism == "OAUTHBEARER":
        return authenticate(wire, bearer(password))
    client = scram.Client(mechanism, user, password)
    answer = authenticate(wire, client.first())
    answer = authenticate(wire, client.final(answer.auth_bytes))
    if not answer.error_code:
        client.check(answer.auth_bytes)
    return answer


def plain(user: str, password: str, authorized: str = "") -> bytes:
    return f"{authorized}\0{user}\0{password}".encode()


def bearer(token: str) -> bytes:
    return b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def all_of(connection: socket.socket, seconds: float = 8) -> bytes:
    """Return the bytes until the server ends the connection, as it should in this time."""
    connection.settimeout(seconds)
    found = b""
    try:
        while more := connection.recv(65536):
            found += more
    except (ConnectionError, ssl.SSLError):
        pass
    return found


def versions_request() -> bytes:
    return encode_request(18, 0, 1, {})


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
