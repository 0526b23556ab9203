"""The connection of kproxy's own commands to a server: TLS and SASL, by a file of client settings.

The names are librdkafka's; those of Kafka's own tools are read too, so that one file serves both.
Passwords are in files alone: others see arguments and environments.
"""

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kproxy.common.errors import CannotStart
from kproxy.protocol.api_keys import ApiKey
from kproxy.security import scram
from kproxy.security.scram import BadLogin

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = (*sorted(scram.HASHES, reverse=True), "PLAIN")
"""The ways to log in, the best first."""
_CREDENTIALS = re.compile(r"""(username|password)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s;"]+))""")
_KNOWN = frozenset(
    (
        "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username",
        "sasl.password", "sasl.jaas.config", "ssl.ca.location", "ssl.certificate.location",
        "ssl.key.location", "ssl.truststore.location", "ssl.truststore.type",
        "ssl.keystore.location", "ssl.keystore.type", "ssl.endpoint.identification.algorithm",
    )
)  # fmt: skip


class NotLoggedIn(CannotStart):
    """The server does not take these credentials; the message is one line for a person."""


class ClientSettings(NamedTuple):
    """The credentials of a client, and the servers that it trusts."""

    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    check_host: bool = True
    mechanism: str | None = None
    user: str = ""
    password: str = ""

    def wrapped(self, connection: socket.socket, host: str) -> socket.socket:
        """Return the connection, encrypted if so set. Raises OSError, of which ssl.SSLError."""
        if not self.tls:
            return connection
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = self.check_host
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context.wrap_socket(connection, server_hostname=host)

    def librdkafka(self) -> dict[str, str]:
        """Return the same for the client library."""
        protocol = ("SASL_" if self.mechanism else "") + ("SSL" if self.tls else "PLAINTEXT")
        found: dict[str, str | None] = {"security.protocol": protocol}
        if self.tls:
            found |= {
                "ssl.ca.location": self.ca,
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.key or self.certificate,
                "ssl.endpoint.identification.algorithm": "https" if self.check_host else "none",
            }
        if self.mechanism:
            found |= {
                "sasl.mechanisms": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return {name: value for name, value in found.items() if value is not None}

    def log_in(self, call: Callable[[int, int, Mapping[str, Any]], Any]) -> None:
        """Log in, where that is to be. `call` sends a request. Raises CannotStart."""
        if self.mechanism is None:
            return
        answer = call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": self.mechanism})
        if answer.error_code:
            offered = ", ".join(answer.mechanisms)
            raise CannotStart(f"{self.mechanism} is not offered there; try one of: {offered}")

        def send(token: bytes) -> bytes:
            answer = call(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": token})
            if answer.error_code:
                raise NotLoggedIn(f"not logged in as {self.user}: {answer.error_message}")
            return bytes(answer.auth_bytes)

        if self.mechanism == "PLAIN":
            send(f"\0{self.user}\0{self.password}".encode())
            return
        client = scram.Client(self.mechanism, self.user, self.password)
        try:
            client.check(send(client.final(send(client.first()))))
        except BadLogin as error:
            raise NotLoggedIn(f"not logged in as {self.user}: {error}") from None


def read_client_settings(path: Path | None, *, credentials: bool = True) -> ClientSettings:
    """Read the settings; without `credentials` none are to be there. Raises CannotStart."""
    if path is None:
        return ClientSettings()
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"cannot read {path}: {error}") from None
    values = {}
    for line in map(str.strip, lines):
        if line and not line.startswith(("#", "!")):
            name, _, value = (part.strip() for part in line.partition("="))
            if name in _KNOWN:  # others are for other tools
                values[name] = value
    return client_settings(path, values, credentials=credentials)


def client_settings(
    path: Path | str, values: Mapping[str, str], *, credentials: bool = True
) -> ClientSettings:
    """Return the settings of these values, which are of `path`. Raises CannotStart."""
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise CannotStart(f"{path}: security.protocol is one of {', '.join(_PROTOCOLS)}")
    for store in ("truststore", "keystore"):
        if f"ssl.{store}.location" in values and values.get(f"ssl.{store}.type") != "PEM":
            raise CannotStart(f"{path}: kproxy reads an ssl.{store} of type PEM alone")
    mechanism, user, password = None, "", ""
    if protocol.startswith("SASL"):
        mechanism = values.get("sasl.mechanism") or values.get("sasl.mechanisms")
        if mechanism not in MECHANISMS:
            raise CannotStart(
                f"{path}: sasl.mechanism is PLAIN or one of {', '.join(scram.HASHES)}"
            )
        user, password = values.get("sasl.username", ""), values.get("sasl.password", "")
        if jaas := values.get("sasl.jaas.config"):
            found = {name: re.sub(r"\\(.)", r"\1", quoted) or bare
                     for name, quoted, bare in _CREDENTIALS.findall(jaas)}  # fmt: skip
            user, password = found.get("username", user), found.get("password", password)
        if credentials and not (user and password):
            raise CannotStart(f"{path}: give sasl.username and sasl.password")
        if not credentials and (user or password):
            raise CannotStart(f"{path}: take user and password out: each logs in as himself")
    keystore = values.get("ssl.keystore.location")
    return ClientSettings(
        tls=protocol.endswith("SSL"),
        ca=values.get("ssl.ca.location") or values.get("ssl.truststore.location"),
        certificate=values.get("ssl.certificate.location") or keystore,
        key=values.get("ssl.key.location"),
        check_host=values.get("ssl.endpoint.identification.algorithm", "https") not in ("", "none"),
        mechanism=mechanism, user=user, password=password,
    )  # fmt: skip
