"""`kproxy users`: who may log in by SCRAM or PLAIN.

Passwords are read from a file, from standard input or from the terminal, and are hashed here: no
server sees them. On the machine of a kproxy nobody needs to log in: its admin socket does.
"""

import base64
import os
import sys
from pathlib import Path
from typing import Any

import click

from kproxy.admin_socket.client import asking
from kproxy.common.errors import CannotStart
from kproxy.security import scram
from kproxy.tools.admin.access import MECHANISMS, users
from kproxy.tools.client import Address, Client, checked
from kproxy.tools.config_options import data_dir_option
from kproxy.tools.options import address as address_option
from kproxy.tools.options import as_json_option, asked, given_settings, path, settings_option
from kproxy.tools.output import print_json, table

_ALTER = 51
_NUMBERS = {name: number for number, name in MECHANISMS.items()}
_LOCAL = ("127.", "localhost", "::1", "[::1]")
_PASSWORD_BYTES_MAX = 1024
_SALT_BYTES = 24

_server = address_option(None, "a kproxy to ask; without it, the one on the data directory")
_mechanism = click.option(
    "--mechanism", "mechanisms", multiple=True, type=click.Choice(list(_NUMBERS)),
    help="only this one; both by default",
)  # fmt: skip


@click.group(name="users")
def users_command() -> None:
    """Show, add and delete users that log in by SCRAM or PLAIN."""


def _changed(data_dir: Path, address: Address | None, changes: list[dict[str, Any]]) -> None:
    """Have changes made. Raises CannotStart."""
    if address is None:
        with asking(_worker_directory(data_dir), "users", changes=changes) as answers:
            for _ in answers.progress():
                pass
        return

    def ask(client: Client) -> None:
        values = {
            "deletions": [
                {"name": one["user"], "mechanism": one["mechanism"]}
                for one in changes if "hashed" not in one
            ],
            "upsertions": [
                {
                    "name": one["user"], "mechanism": one["mechanism"],
                    "iterations": one["iterations"],
                    "salt": base64.b64decode(one["salt"]),
                    "salted_password": base64.b64decode(one["hashed"]),
                }
                for one in changes if "hashed" in one
            ],
        }  # fmt: skip
        for result in client.call(_ALTER, 0, values).results:
            checked(result.error_code, f"{result.user}: {result.error_message}")

    asked(address, ask)


def _worker_directory(data_dir: Path) -> Path:
    """Return the directory of the first worker, where there are several here."""
    first = data_dir / "worker-0"
    return first if first.is_dir() else data_dir


def _password(file: Path | None) -> bytes:
    if file is not None:
        try:
            password = file.read_bytes()
        except OSError as error:
            raise CannotStart(f"cannot read {file}: {error.strerror}") from None
    elif sys.stdin.isatty():
        password = click.prompt("password", hide_input=True, confirmation_prompt=True).encode()
    else:
        password = sys.stdin.buffer.read(_PASSWORD_BYTES_MAX + 2)
    password = password.rstrip(b"\r\n")
    if not 0 < len(password) <= _PASSWORD_BYTES_MAX:
        raise CannotStart(f"a password has 1 to {_PASSWORD_BYTES_MAX} bytes")
    return password


@users_command.command(name="add")
@click.argument("name")
@_mechanism
@click.option("--iterations", default=scram.ITERATIONS_MIN, show_default=True,
              type=click.IntRange(scram.ITERATIONS_MIN, scram.ITERATIONS_MAX),
              help="how often the password is hashed")  # fmt: skip
@path("--password-file", help="file of the password")
@data_dir_option
@_server
@settings_option
def add_command(
    name: str, mechanisms: tuple[str, ...], iterations: int, password_file: Path | None,
    data_dir: Path, bootstrap_server: Address | None,
) -> None:  # fmt: skip
    """Add a user, or give one another password: the line that standard input has."""
    password = _password(password_file)
    if bootstrap_server is not None and _is_heard(bootstrap_server):
        click.echo(
            "warning: what is sent to that kproxy is not encrypted, and the salted password is as"
            " good as the password: who hears it may log in by SCRAM",
            err=True,
        )
    changes = []
    for mechanism in mechanisms or _NUMBERS:
        salt = os.urandom(_SALT_BYTES)
        hashed = scram.salted(mechanism, password, salt, iterations)
        changes.append(
            {
                "user": name, "mechanism": _NUMBERS[mechanism], "iterations": iterations,
                "salt": base64.b64encode(salt).decode(),
                "hashed": base64.b64encode(hashed).decode(),
            }
        )  # fmt: skip
    _changed(data_dir, bootstrap_server, changes)
    click.echo(f"{name} may log in")


def _is_heard(address: Address) -> bool:
    """Whether what is sent to an address goes over a network as it is."""
    return not given_settings().tls and not address[0].startswith(_LOCAL)


def _listed(data_dir: Path, address: Address | None) -> dict[str, list[tuple[str, int]]]:
    """Return mechanisms and iterations by user."""
    if address is None:
        found: dict[str, list[tuple[str, int]]] = {}
        with asking(_worker_directory(data_dir), "list-users") as answers:
            for one in answers.progress():
                entry = (MECHANISMS[one["mechanism"]], int(one["iterations"]))
                found.setdefault(one["user"], []).append(entry)
        return found
    return dict(asked(address, users))


@users_command.command(name="list")
@as_json_option
@data_dir_option
@_server
@settings_option
def list_command(as_json: bool, data_dir: Path, bootstrap_server: Address | None) -> None:
    """Show who may log in, and by which mechanisms."""
    found = sorted(_listed(data_dir, bootstrap_server).items())
    if as_json:
        print_json({"user": user, "mechanisms": dict(infos)} for user, infos in found)
        return
    table(
        ["USER", "MECHANISM", "ITERATIONS"],
        [(user, mechanism, count) for user, infos in found for mechanism, count in infos],
    )


@users_command.command(name="delete")
@click.argument("name")
@_mechanism
@data_dir_option
@_server
@settings_option
def delete_command(
    name: str, mechanisms: tuple[str, ...], data_dir: Path, bootstrap_server: Address | None
) -> None:
    """Delete a user: it cannot log in again, and is disconnected where it has."""
    known = [mechanism for mechanism, _ in _listed(data_dir, bootstrap_server).get(name, [])]
    doomed = [mechanism for mechanism in known if not mechanisms or mechanism in mechanisms]
    if not doomed:
        raise CannotStart(f"there is no such user {name}; `kproxy users list` shows who there is")
    changes = [{"user": name, "mechanism": _NUMBERS[mechanism]} for mechanism in doomed]
    _changed(data_dir, bootstrap_server, changes)
    click.echo(f"{name} is deleted: {', '.join(doomed)}")
