"""The options that commands have in common, and the connection that they give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kproxy.common.errors import CannotStart
from kproxy.protocol.name_search import NameSearch
from kproxy.tools.client import Address, Client, Refused, matcher
from kproxy.tools.client_settings import ClientSettings, read_client_settings

_SETTINGS = "kproxy.client_settings"


def parsed_address(text: str, example: str) -> Address:
    """Return a host and a port. Raises BadParameter."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"{text}: write it as HOST:PORT, for example {example}")
    return host.strip("[]"), int(port)


def _address(context: Any, parameter: Any, text: str | None) -> Address | None:
    return None if text is None else parsed_address(text.split(",")[0], "127.0.0.1:9092")


def _keep_settings(context: click.Context, parameter: Any, path: Path | None) -> None:
    context.meta[_SETTINGS] = read_client_settings(path)


def path(*names: str, exists: bool = False, **more: Any) -> Callable[..., Any]:
    """Return an option that names a file or a directory."""
    kind = click.Path(path_type=Path, exists=exists, dir_okay=not exists)
    return click.option(*names, type=kind, **more)


def address(default: str | None, help_: str) -> Callable[..., Any]:
    """Return the option for the server's address."""
    return click.option(
        "--bootstrap-server", default=default, show_default=True, metavar="HOST:PORT",
        envvar="KPROXY_BOOTSTRAP_SERVER", callback=_address, help=help_,
    )  # fmt: skip


settings_option = path(
    "--command-config", envvar="KPROXY_COMMAND_CONFIG", expose_value=False,
    callback=_keep_settings,
    help="file of client settings, for TLS and SASL (names of librdkafka, or of Kafka's tools)",
)  # fmt: skip
_server = address("127.0.0.1:9092", "a kproxy to ask")
as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="JSON lines instead of a table"
)


def _search(context: Any, parameter: Any, text: str | None) -> NameSearch | None:
    if text is None:
        return None
    if not text:
        raise click.UsageError("--match is empty: .* matches all names")
    try:
        matcher(found := NameSearch(matching=text))
    except Refused as error:
        raise click.UsageError(f"--match {error}") from None
    return found


match_option = click.option(
    "--match", "--matching", "match", metavar="REGEX", callback=_search,
    help="only names that this matches as a whole (RE2)",
)  # fmt: skip


def server_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the server's address and the client's credentials."""
    made: Callable[..., Any] = _server(settings_option(command))
    return made


def given_settings() -> ClientSettings:
    """Return the settings of --command-config."""
    found: ClientSettings = click.get_current_context().meta.get(_SETTINGS) or ClientSettings()
    return found


def asked(address: Address, ask: Callable[[Client], Any]) -> Any:
    try:
        with Client(address, given_settings()) as client:
            return ask(client)
    except Refused as error:
        raise CannotStart(str(error)) from None


def librdkafka(address: Address, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a client of the library."""
    there = {"bootstrap.servers": f"{address[0]}:{address[1]}", "log_level": 0}
    return there | given_settings().librdkafka() | settings
