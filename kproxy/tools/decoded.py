"""The keys that queue names stand for, by the template of the entrance that made the queues."""

import click

from kproxy.metadata.routing import Template, read_template
from kproxy.tools.client import ROUTE_TO, Client, Refused

entrance_option = click.option(
    "--entrance", metavar="QUEUE",
    help="only queues that its kproxy.route.to makes, with the keys and headers they stand for",
)  # fmt: skip


def template_of(client: Client, entrance: str) -> Template:
    """Return the template of an entrance. Raise Refused: it is none."""
    client.queue(entrance)  # it says where there is no such queue
    text = client.route_settings([entrance]).get(entrance, {}).get(ROUTE_TO)
    if not text:
        raise Refused(f"{entrance} has no {ROUTE_TO}: name the queue that the records come in by")
    return read_template(text)


def decoded(template: Template, name: str) -> str | None:
    """Return what a queue's name stands for; None: the template makes no such name."""
    found = template.unfill(name)
    if found is None:
        return None
    if len(found) == 1:
        return _shown(found[0][1])
    return " ".join(f"{field}={_shown(value)}" for field, value in found)


def _shown(value: bytes | None) -> str:
    """Return a key or a header's value for people: as text, or in hexadecimal digits."""
    if value is None:
        return "(a hash)"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if text.isprintable() else f"0x{value.hex()}"
