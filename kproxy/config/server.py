"""Every setting and limit of the server in one frozen `Config`, checked once.

A flag overrides a `KPROXY_…` variable of the environment, which overrides a TOML file. All three
are derived from this one list, and pydantic checks them. Names end in their unit.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import ByteSize, ConfigDict, ValidationError, model_validator

from kproxy.common.errors import BadConfig
from kproxy.config import sections
from kproxy.config.groups import ConsumerGroupsConfig, ShareGroupsConfig, StreamsGroupsConfig
from kproxy.config.listeners import ListenerConfig, split_address, together
from kproxy.config.security import SecurityConfig
from kproxy.config.setting import Section
from kproxy.log.sync import Sync
from kproxy.metadata.setting import BOOLEAN, INT, LONG, STRING

ENV_PREFIX = "KPROXY_"
_SECRET = re.compile("passw|secret|token|credential|key")  # in a name: the value is never shown
_SHOWN_MAX = 200


class BrokerSetting(NamedTuple):
    """A setting as Kafka's brokers have it."""

    value: bool | int | str
    documentation: str
    kind: int


class Config(
    sections.NetworkConfig, sections.StorageConfig, sections.ProcessConfig, sections.ClusterConfig,
    sections.QueuesConfig, sections.LimitsConfig, SecurityConfig, sections.ClassicConfig,
    ConsumerGroupsConfig, ShareGroupsConfig, StreamsGroupsConfig, sections.ProducersConfig,
    sections.MetricsConfig,
):  # fmt: skip
    """All settings of one worker. Bytes may be written 64MiB; times are milliseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _listeners(self) -> Self:
        together(self.listeners)
        return self

    @model_validator(mode="after")
    def _advertisable(self) -> Self:
        if self.advertised_address[0] in ("0.0.0.0", "::"):
            raise ValueError(
                f"clients cannot connect to {self.advertised_address[0]}: say where they can with"
                " --advertise HOST:PORT"
            )
        return self

    @model_validator(mode="after")
    def _partitions(self) -> Self:
        if self.partitions_default > self.partitions_max:
            raise ValueError(
                f"--partitions-default {self.partitions_default} is more than --partitions-max"
                f" {self.partitions_max} allows"
            )
        return self

    @model_validator(mode="after")
    def _several(self) -> Self:
        if self.workers > 1 and self.bootstrap_servers is None:
            raise ValueError(
                "several workers share a Kafka cluster: say which with --bootstrap-servers"
            )
        if self.workers > 1 and not all(one.address[1] for one in self.listening):
            raise ValueError("several workers count up from a port: give one with --listen")
        return self

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The addresses that clients are told to use, by listener; empty without `listeners`."""
        return {one.name: one.advertised for one in self.listeners}

    @property
    def log_bytes_max(self) -> int:
        """The most bytes that a shard's log takes in one record."""
        embedded = self.bootstrap_servers is None
        return int(self.frame_bytes_max if embedded else self.data_message_bytes_max)

    @property
    def sync_policy(self) -> Sync:
        word, _, number = self.sync.partition(":")
        return Sync(always=word == "always", interval_ms=int(number) if number else None)

    @property
    def listening(self) -> tuple[ListenerConfig, ...]:
        """All listeners. The first is the worker's own address: by it workers know each other."""
        if self.listeners:
            return self.listeners
        only = {"listen": self.listen, "advertise": self.advertise}
        return (ListenerConfig.model_validate(only),)

    @property
    def listen_address(self) -> tuple[str, int]:
        return self.listeners[0].address if self.listeners else split_address(self.listen)

    def http_address_of(self, index: int) -> str | None:
        """Return the address of one of several workers: ports count up, where one is given."""
        if self.http_listen is None or self.http_listen == "off":
            return self.http_listen
        host, _, port = self.http_listen.rpartition(":")
        return f"{host}:{int(port) + index if int(port) else 0}"

    @property
    def advertised_address(self) -> tuple[str, int]:
        if self.listeners:
            return self.listeners[0].advertised
        return split_address(self.advertise or self.listen)

    def broker_settings(self) -> dict[str, BrokerSetting]:
        """Return the settings that Kafka's brokers have too, by their names there."""
        found = {}
        for name, theirs in _KAFKAS.items():
            kafkas, _, longer = theirs.partition(" ")
            text, value = f"{FIELDS[name].description}.", getattr(self, name)
            kind = LONG if longer else _KINDS[type(value)]
            found[kafkas] = BrokerSetting(value, text[0].upper() + text[1:], kind)
        return found

    def broker_values(self) -> dict[str, int]:
        """Return the settings of groups that are numbers."""
        return {
            name: one.value
            for name, one in self.broker_settings().items()
            if name.startswith("group.") and isinstance(one.value, int)
        }


_KINDS = {bool: BOOLEAN, int: INT, ByteSize: INT, str: STRING}


def title_of(section: type[Section]) -> str:
    return section.model_config["title"] or ""


SECTIONS: tuple[type[Section], ...] = Config.__bases__
FIELDS = {
    name: field
    for section in SECTIONS
    for name, field in section.model_fields.items()
    if name != "listeners"
}
"""The settings of `Config`, as flags and as they are shown. Listeners have no flag."""


def _kafkas(section: type[Section], name: str) -> str | None:
    """Return the name and type of a setting in Kafka, where it has one."""
    more: Any = section.model_fields[name].json_schema_extra or {}
    same = name.replace("_", ".") if section.NAMES_ARE_KAFKAS else None
    told: str | None = more.get("kafka", same)
    return told


_KAFKAS = {name: told for section in SECTIONS for name in section.model_fields
           if (told := _kafkas(section, name)) is not None}  # fmt: skip


def load(flags: dict[str, Any], file: Path | None, environ: dict[str, str] | None = None) -> Config:
    """Load flags over environment over file over defaults. Raises BadConfig."""
    values = _from_file(file) if file else {}
    values |= _from_environment(os.environ if environ is None else environ)
    values |= flags
    try:
        return Config(**values)
    except ValidationError as error:
        raise BadConfig(_one_line(error)) from None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadConfig(f"cannot read the configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not a TOML file: {error}") from None
    for name in values:
        _known(name, f"{name} in {path}")
    return values


def _from_environment(environ: Any) -> dict[str, Any]:
    values = {}
    for variable, value in environ.items():
        if variable.startswith(ENV_PREFIX) and variable != f"{ENV_PREFIX}CONFIG":
            name = variable.removeprefix(ENV_PREFIX).lower()
            _known(name, f"{variable} in the environment")
            values[name] = value
    return values


def _known(name: str, where: str) -> None:
    if name not in Config.model_fields:
        raise BadConfig(f"{where} is not a setting of kproxy; `kproxy serve --help` lists them")


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    problem = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return problem
    name = "--" + str(first["loc"][0]).replace("_", "-")
    if first["loc"][0] == "listeners":
        name = " ".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    given = first["input"]
    told = isinstance(given, str | int | float) and not _SECRET.search(name)
    shown = f" {str(given)[:_SHOWN_MAX]}" if told else ""
    return f"{name}{shown}: {problem}"
