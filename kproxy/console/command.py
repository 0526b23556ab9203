"""`kproxy console`: pages in a browser about the queues of a kproxy."""

import socket
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from kproxy.common.errors import CannotStart
from kproxy.common.logs import configure
from kproxy.tools.client import Address
from kproxy.tools.client_settings import read_client_settings
from kproxy.tools.options import address, parsed_address, path
from kproxy.tools.top import watched

_PORT_DEFAULTS = {"http": 80, "https": 443}


def _listen(context: Any, parameter: Any, text: str) -> Address:
    return parsed_address(text, "127.0.0.1:8080")


@click.command(name="console")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT",
              callback=_listen, help="the address that browsers reach it at")  # fmt: skip
@address("127.0.0.1:9092", "the kproxy that is shown")
@path("--command-config", envvar="KPROXY_COMMAND_CONFIG",
      help="file of client settings: security.protocol and ssl.…; each who looks logs in as"
      " himself")  # fmt: skip
@path("--tls-cert", exists=True, help="certificate chain for browsers, as PEM")
@path("--tls-key", exists=True, help="its private key, where another file has it")
@click.option("--host", "names", multiple=True, metavar="NAME",
              help="a name that browsers know it by; may be given again")  # fmt: skip
@click.option("--http", "http", multiple=True, metavar="HOST:PORT",
              help="a worker's --http-listen, for charts; more than one may be given"
              " [default: where workers say they are, from port 9644 on]")  # fmt: skip
@path("--token-file", exists=True, help="the bearer token that they ask for")
@path("--ca-file", exists=True, help="the certificates to trust at https:// addresses of theirs")
@click.option("--insecure", is_flag=True, help="listen beyond this machine without TLS")
@click.option("--read-only", is_flag=True, help="change nothing, whatever its users may do")
@click.option("--hide-contents", is_flag=True, help="show no key, value or header of a record")
def console_command(
    listen: Address, bootstrap_server: Address, command_config: Path | None, tls_cert: Path | None,
    tls_key: Path | None, names: tuple[str, ...], http: tuple[str, ...], token_file: Path | None,
    ca_file: Path | None, insecure: bool, read_only: bool,
    hide_contents: bool,
) -> None:  # fmt: skip
    """Show queues, records and groups in a browser, as the user who logs in may see them."""
    try:
        from kproxy.console.app import Console, Options
        from kproxy.console.serving import run
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"the console needs {error.name}: pip install 'kproxy[console]'"
        ) from None
    if tls_cert is None and not insecure and not _is_loopback(listen[0]):
        raise CannotStart(
            f"{listen[0]} is reached from elsewhere: give --tls-cert, for passwords and records"
            " pass here, or --insecure"
        )
    settings = read_client_settings(command_config, credentials=False)
    configure("warning", "auto")
    with _listening(listen) as listener:
        port = listener.getsockname()[1]
        options = Options(
            address=bootstrap_server, settings=settings, login=settings.mechanism is not None,
            hosts=hosts(listen[0], port, names, tls=tls_cert is not None),
            tls=tls_cert is not None, read_only=read_only, hide_contents=hide_contents, http=http,
            source=watched(http, token_file, ca_file),
        )  # fmt: skip
        scheme = "https" if tls_cert else "http"
        click.echo(f"console at {scheme}://{_written(listen[0])}:{port}")
        try:
            run(Console(options).application(), listener, tls_cert, tls_key)
        except (OSError, ssl.SSLError) as error:
            raise CannotStart(f"cannot use --tls-cert {tls_cert}: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def hosts(listen: str, port: int, names: tuple[str, ...], *, tls: bool) -> frozenset[str]:
    """Return the Host headers that are answered: any other name may be an attacker's."""
    known = {_written(listen), "localhost", "127.0.0.1", "[::1]", *map(str.lower, names)}
    found = {f"{name}:{port}" for name in known}
    if port == _PORT_DEFAULTS["https" if tls else "http"]:
        found |= known
    return frozenset(found | {name.lower() for name in names})


def _listening(listen: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
    try:
        return socket.create_server(listen, family=family, backlog=128)
    except OSError as error:
        raise CannotStart(f"cannot listen at {listen[0]}:{listen[1]}: {error}") from None
