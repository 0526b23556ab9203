"""`kproxy health`: whether the kproxy here serves."""

import ssl
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import click

from kproxy.common.errors import CannotStart
from kproxy.common.printable import printable
from kproxy.config.sections import HTTP_DEFAULT
from kproxy.config.server import Config
from kproxy.tools.client import Client
from kproxy.tools.client_settings import ClientSettings
from kproxy.tools.config_options import config_file, loaded, settings
from kproxy.tools.options import given_settings, settings_option
from kproxy.tools.top import NoRedirects

_HEALTH_S = 4


@click.command(name="health")
@settings("listen", "advertise", "http_listen")
@settings_option
@click.option("--http", is_flag=True, help="ask /readyz at the --http-listen address instead")
@config_file
def health_command(config_file: Path | None, http: bool, **flags: Any) -> None:
    """Ask the kproxy at the listen address whether it serves; exit status 0 if so."""
    config = loaded(config_file, flags)
    if http:
        click.echo(printable(http_health(config)))
        return
    host, port = config.listen_address
    here = "localhost" if host in ("0.0.0.0", "::") else host
    if (given := given_settings()) != ClientSettings():
        click.echo(printable(secured_health(here, port, given)))
        return
    click.echo(printable(health(here, port)))


def health(host: str, port: int) -> str:
    """Return one line about the kproxy at an address.

    Raises CannotStart where it does not serve.
    """
    from confluent_kafka import KafkaException  # --help needs none
    from confluent_kafka.admin import AdminClient

    client = AdminClient(
        {"bootstrap.servers": f"{host}:{port}", "log_level": 0, "socket.timeout.ms": 3000}
    )
    try:
        cluster = client.describe_cluster(request_timeout=_HEALTH_S).result()
    except KafkaException as error:
        raise CannotStart(
            f"nothing serves at {host}:{port}: {error.args[0].str()}; is kproxy up, and --listen"
            " right?"
        ) from None
    return f"cluster {cluster.cluster_id}: {len(cluster.nodes)} serving"


def secured_health(host: str, port: int, settings: ClientSettings) -> str:
    """Return the same over TLS or after a login. Raises CannotStart."""
    with Client((host, port), settings) as client:
        return f"{len(client.nodes())} serving"


def http_health(config: Config) -> str:
    """Whether the kproxy here is ready, whatever its clients have to show for themselves; with
    several workers, each. Raises CannotStart where one is not.
    """
    if config.http_listen == "off":
        raise CannotStart("there is no health over HTTP: --http-listen is off")
    for index in range(config.workers):
        host, _, port = (config.http_address_of(index) or HTTP_DEFAULT).rpartition(":")
        url = f"{'https' if config.http_tls_cert else 'http'}://{_here(host)}:{port}/readyz"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is this machine
        try:
            https = urllib.request.HTTPSHandler(context=context)
            asks = urllib.request.build_opener(NoRedirects, https)
            with asks.open(url, timeout=_HEALTH_S) as answer:
                told = answer.read(100).decode(errors="replace")
        except HTTPError as error:
            raise CannotStart(
                f"{url}: {error.read(1000).decode(errors='replace').strip()}"
            ) from None
        except OSError as error:
            raise CannotStart(f"{url}: {error}") from None
    return f"ready{told.strip().removeprefix('ok')}"


def _here(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
