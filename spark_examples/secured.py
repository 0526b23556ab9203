"""The login of the jobs, over TLS: by one file of client settings, in librdkafka's names.

Spark's clients are Java's and have other names, and admin clients are librdkafka's. So a job
carries Java's, among its options, and its admin client gets back librdkafka's. Passwords are in the
file alone: others see a command's arguments.
"""

import re
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient

_MODULES = {"PLAIN": "plain.PlainLoginModule"} | dict.fromkeys(
    ("SCRAM-SHA-256", "SCRAM-SHA-512"), "scram.ScramLoginModule"
)
_PROTOCOL, _MECHANISM = "security.protocol", "sasl.mechanism"
_CA, _USER, _PASSWORD = "ssl.ca.location", "sasl.username", "sasl.password"
_STORE, _JAAS = "kafka.ssl.truststore.location", "kafka.sasl.jaas.config"
_QUOTED = re.compile(r'(username|password)="((?:\\.|[^"\\])*)"')


def options_of(path: Path) -> dict[str, str]:
    """Return options of Spark's source and sink. Raises ClickException."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read {path}: {error}") from None
    given = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            given[name.strip()] = value.strip()
    known = {_PROTOCOL, _MECHANISM, _CA, _USER, _PASSWORD}
    if others := sorted(given.keys() - known):
        raise click.ClickException(
            f"{path}: the jobs know no {others[0]}: only {', '.join(sorted(known))}"
        )
    options = {"kafka." + name: given[name] for name in (_PROTOCOL, _MECHANISM) if name in given}
    if _CA in given:
        options |= {"kafka.ssl.truststore.type": "PEM", _STORE: given[_CA]}
    if _MECHANISM in given:
        if given[_MECHANISM] not in _MODULES or not given.keys() >= {_USER, _PASSWORD}:
            raise click.ClickException(
                f"{path}: give {_USER}, {_PASSWORD} and as {_MECHANISM} {', '.join(_MODULES)}"
            )
        said = {"username": given[_USER], "password": given[_PASSWORD]}
        quoted = " ".join(f'{name}="{_escaped(value)}"' for name, value in said.items())
        module = f"org.apache.kafka.common.security.{_MODULES[given[_MECHANISM]]}"
        options[_JAAS] = f"{module} required {quoted};"
    return options


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def admin(server: str, options: dict[str, str]) -> AdminClient:
    """Return an admin client that logs in as Spark's clients do with these options."""
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": server}
    for name in (_PROTOCOL, _MECHANISM):
        if (value := options.get("kafka." + name)) is not None:
            settings[name] = value
    if _STORE in options:
        settings[_CA] = options[_STORE]
    for name, quoted in _QUOTED.findall(options.get(_JAAS, "")):
        settings["sasl." + name] = re.sub(r"\\(.)", r"\1", quoted)
    return AdminClient(settings)
