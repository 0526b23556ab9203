"""`kproxy bulk`: queues that the server deletes, or gives another setting, all that match.

It is a job of the server: the command counts the queues, begins, changes and ends it, and shows how
far it is.
"""

import json
import secrets
import time
from datetime import UTC, datetime
from typing import Any

import click

from kproxy.common.errors import CannotStart
from kproxy.common.printable import printable
from kproxy.protocol.name_search import NameSearch
from kproxy.tools.changes import pairs
from kproxy.tools.client import Address, Client, Refused
from kproxy.tools.options import as_json_option, asked, match_option, server_option
from kproxy.tools.output import bar, print_json, table

_BROKER = 4
_JOB, _JOBS = "kproxy.job.", "kproxy.state.jobs"
_SET, _UNSET = 0, 1
_LOOK_S = 0.5
_SHOWN = 20


class Jobs:
    """The jobs of the server, which one worker has."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._node, self._told = self._found()

    def _found(self) -> tuple[int, list[dict[str, Any]]]:
        for node in self._client.nodes():
            for config in self._client.configs([""], (_JOBS,), node, _BROKER)[0].configs:
                if config.name == _JOBS and (told := json.loads(config.value)) is not None:
                    return node, told
        raise Refused("no worker has the jobs now: ask again, or upgrade all of them")

    def all(self) -> list[dict[str, Any]]:
        """Return the jobs that the asker may see."""
        return self._told

    def one(self, name: str) -> dict[str, Any]:
        """Return a job as it stands now. Raise Refused."""
        self._node, self._told = self._found()
        for job in self._told:
            if job["job"] == name:
                return job
        raise Refused(f"there is no job {name}, or it is another's")

    def change(self, name: str, said: dict[str, Any] | None) -> None:
        """Begin or change a job; None ends it. Raise Refused."""
        change = {
            "name": _JOB + name, "config_operation": _UNSET if said is None else _SET,
            "value": None if said is None else json.dumps(said),
        }  # fmt: skip
        resource = {"resource_type": _BROKER, "resource_name": "", "configs": (change,)}
        values = {"resources": (resource,), "validate_only": False}
        (answer,) = self._client.call(44, 1, values, self._node).responses
        if answer.error_code:
            raise Refused(f"job {name}: {answer.error_message or answer.error_code}")


def counted(client: Client, search: NameSearch) -> tuple[int, list[str]]:
    """Return how many queues a search means, and the first of them."""
    count, first, last = 0, list[str](), None
    for page in client.pages(search):
        for topic in page:
            if topic.name != last:
                count, last = count + 1, topic.name
                first += [topic.name] if count <= _SHOWN else []
    return count, first


def state_of(job: dict[str, Any]) -> str:
    return "over" if job["over"] else "paused" if job["paused"] else "running"


@click.command(name="bulk")
@click.argument("job", required=False)
@match_option
@click.option("--prefix", metavar="TEXT", help="only names that begin so")
@click.option("--delete", "deletes", is_flag=True, help="begin: delete all that match")
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE",
              help="begin: set this of all that match; may be given again")  # fmt: skip
@click.option("--unset", "dropped", multiple=True, metavar="KEY", help="begin: to the default")
@click.option("--rate", metavar="NUMBER/s", help="so many queues and no more; also while it runs")
@click.option("--pause", "change", flag_value="pause", help="wait")
@click.option("--resume", "change", flag_value="resume", help="go on after a pause")
@click.option("--stop", "change", flag_value="stop", help="end it: what is done stays done")
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--watch", is_flag=True, help="show how far it is until it is over")
@as_json_option
@server_option
def bulk_command(
    job: str | None, match: NameSearch | None, prefix: str | None, deletes: bool,
    given: tuple[str, ...], dropped: tuple[str, ...], rate: str | None, change: str | None,
    yes: bool, watch: bool, as_json: bool, bootstrap_server: Address,
) -> None:  # fmt: skip
    """Delete queues or set their settings, all that match, by a job of the server; or show jobs."""
    begins = deletes or bool(given or dropped)
    if begins == (match is None and prefix is None):
        raise click.UsageError("say which queues, by --match or --prefix, and --delete or --set")
    if deletes and (given or dropped):
        raise click.UsageError("--delete and --set exclude each other")
    if not begins and job is None and (rate or change or watch):
        raise click.UsageError("name the job: `kproxy bulk` lists them")
    search = (match or NameSearch())._replace(prefix=prefix or "")
    said: dict[str, Any] = {"do": "delete"} if deletes else {"do": "set"}
    if not deletes:
        said |= {"set": pairs(given, "--set"), "unset": list(dropped)}

    def ask(client: Client) -> None:
        jobs, name = Jobs(client), job or _made_up()
        if begins:
            count = _confirmed(client, search, deletes=deletes, yes=yes)
            wanted = {field: value for field, value in search._asdict().items() if value}
            jobs.change(name, said | {"search": wanted, "queues": count, "rate": rate or ""})
        elif change == "stop":
            jobs.change(name, None)
            click.echo(f"stopped {printable(name)}")
            return
        elif rate or change:
            changes: dict[str, Any] = {"rate": rate} if rate else {}
            jobs.change(name, changes | ({"paused": change == "pause"} if change else {}))
        if job is None and not begins:
            _show(jobs.all(), as_json)
            return
        _show([_watched(jobs, name) if watch else jobs.one(name)], as_json)

    asked(bootstrap_server, ask)


def _made_up() -> str:
    return f"{datetime.now(UTC).isoformat('T', 'seconds')[:19]}Z-{secrets.token_hex(3)}"


def _confirmed(client: Client, search: NameSearch, *, deletes: bool, yes: bool) -> int:
    """Return how many queues there are, once somebody has agreed. Raise Refused."""
    count, first = counted(client, search)
    if not count:
        raise Refused("no queue matches")
    if not yes:
        for name in first:
            click.echo(printable(name), err=True)
        if count > len(first):
            click.echo(f"… and {count - len(first)} more", err=True)
        what = "delete them with all records" if deletes else "change the settings of all"
        click.confirm(f"{count} queues: {what}?", abort=True, err=True)
    return count


def _watched(jobs: Jobs, name: str) -> dict[str, Any]:
    """Show how far a job is until it is over. Raise CannotStart."""
    with bar("queues", None) as told:
        job = jobs.one(name)
        while not job["over"]:
            done = job["done"] + job["refused"]
            told(total=max(job["queues"], done), completed=done)
            time.sleep(_LOOK_S)
            try:
                job = jobs.one(name)
            except Refused:
                raise CannotStart(f"job {name} was stopped: nothing more is done") from None
    return job


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json([job | {"state": state_of(job)} for job in found])
        return
    rows = []
    for job in found:
        does = "delete" if job["do"] == "delete" else " ".join(
            (*(f"{key}={value}" for key, value in job["set"].items()),
             *(f"-{key}" for key in job["unset"]))
        )  # fmt: skip
        which = " ".join(f"{field}:{text}" for field, text in job["search"].items() if text)
        rows.append((job["job"], does, which, state_of(job), job["done"], job["refused"],
                     job["queues"], job["by"], job["reason"] or "-"))  # fmt: skip
    table(["JOB", "DOES", "QUEUES", "STATE", "DONE", "REFUSED", "OF", "BY", "WHY REFUSED"], rows)
