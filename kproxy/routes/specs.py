"""The targets of records, as the text says that an epoch of a route has."""

from typing import NamedTuple

import orjson

from kproxy.metadata.routing import Filter, Template, read_configs, read_filter, read_template
from kproxy.routes.redriving import Redrive, read_redrive
from kproxy.virtual.folds.redrives import TO as REDRIVE_TO
from kproxy.virtual.folds.route_definitions import CONFIGS, FILTER, TO, UNROUTABLE


class Spec(NamedTuple):
    """The targets of records, from the text that an epoch has."""

    name: str  # the definer's
    template: Template | None
    filter: Filter | None
    unroutable: str
    configs: dict[str, str]
    redrive: Redrive | None = None

    @property
    def only(self) -> bool:
        """Whether all goes to its definer."""
        return self.template is None and self.redrive is None

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at."""
        which = self.template or self.redrive or self.filter
        return frozenset() if which is None else which.headers


NOWHERE = Spec("", None, None, "", {})


def read_spec(text: bytes) -> Spec:
    """Read a spec. Raise ValueError for one that a later kproxy has written."""
    if not text:
        return NOWHERE
    values = orjson.loads(text)
    if values.get(TO):
        configs = read_configs(values.get(CONFIGS, ""))
        template = read_template(values[TO])
        name = values["name"]
        return Spec(name, template, None, values.get(UNROUTABLE) or f"{name}.unroutable", configs)
    if values.get(REDRIVE_TO):
        redrive = read_redrive(values["name"], values)
        return Spec(values["name"], None, None, "", {}, redrive)
    return Spec(values["name"], None, read_filter(values.get(FILTER, "")), "", {})
