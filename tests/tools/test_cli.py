"""The imports of a command, and the completeness of the help."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from kproxy.cli import cli
from tests.harness import ROOT

SERVER = ("kproxy.server", "kproxy.cluster", "kproxy.worker", "kproxy.handlers", "kproxy.log.local")
SHOWN = (
    "import sys; from kproxy.cli import cli\n"
    "cli.main(sys.argv[1:], standalone_mode=False)\n"
    "print(*sys.modules, sep='\\n')\n"
)


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command has imported once it is done."""
    done = subprocess.run(
        [sys.executable, "-c", SHOWN, *arguments], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return set(done.stdout.splitlines())


@pytest.mark.parametrize(
    "command",
    ["queues", "groups", "describe", "delete", "top", "upgrade", "create", "alter", "produce",
     "consume"],
)  # fmt: skip
def test_asking_commands_import_no_server(command: str) -> None:
    found = imported(command, "--help")
    assert "kproxy.cli" in found
    unwanted = {
        *SERVER,
        "kproxy.config.server",
        "pydantic",
        "confluent_kafka",
        "structlog",
        "uvloop",
        "kproxy.virtual.commands",
        *({"rich"} if command != "top" else ()),
    }
    assert not unwanted & found


@pytest.mark.parametrize("command", ["check", "backup"])
def test_commands_of_a_directory_import_no_fold(command: str) -> None:
    assert "kproxy.virtual.fold" not in imported(command, "--help")


@pytest.mark.parametrize("command", ["users", "drain", "health", "locate", "serve"])
def test_help_imports_no_server(command: str) -> None:
    assert not set(SERVER) & imported(command, "--help")


def test_help_lists_every_command() -> None:
    done = CliRunner().invoke(cli, ["--help"])
    assert done.exit_code == 0, done.output
    listed = [line.split() for line in done.output.partition("Commands:")[2].splitlines() if line]
    assert [line[0] for line in listed] == sorted(cli.list_commands(None))  # type: ignore[arg-type]
    assert all(len(line) > 2 for line in listed)  # with what it does


def test_the_list_of_commands_imports_none() -> None:
    """`kproxy --help` cost two seconds: it imported them all for a line about each."""
    assert not [name for name in imported("--help") if name.startswith("kproxy.tools")]


def test_serve_help_has_an_option_for_each_setting() -> None:
    from kproxy.config.server import FIELDS

    shown = CliRunner().invoke(cli, ["serve", "--help"]).output
    assert not [name for name in FIELDS if f"--{name.replace('_', '-')}" not in shown]


def test_serve_help_is_in_sections_and_says_what_a_value_is() -> None:
    from kproxy.config.server import SECTIONS, title_of

    shown = CliRunner().invoke(cli, ["serve", "--help"]).output
    titles = [line[:-1] for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Options", *map(title_of, SECTIONS)]
    assert "VALUE" not in shown
    for line in ("--listen HOST:PORT", "--data-dir DIR", "--session-ms MS", "--http-tls-cert FILE",
                 "--segment-bytes BYTES", "--authorizer none|acl", "--workers N"):  # fmt: skip
        assert line in shown
    assert "[default: 128MiB]" in " ".join(shown.split())
    assert "[default: ]" not in shown
