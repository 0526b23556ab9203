"""The command that changes what is set of a group."""

from typing import NamedTuple

import orjson

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.levels import SHARES_FROM
from kproxy.virtual.rows.kinds import RowKind


@of_kind(
    Kind.CONFIGURE_GROUP,
    DiskUse.MODEST,
    by_items,
    level=SHARES_FROM,
    publishes=(RowKind.GROUP_CONFIG,),
    answered_across_workers=True,
)
class ConfigureGroup(NamedTuple):
    """A group's settings change, whether there is such a group or not.

    `replace_all` drops those that are not given.
    """

    group: str
    given: dict[str, str]
    dropped: list[str]
    replace_all: bool = False

    def envelope(self) -> Envelope:
        values = {
            "group": self.group, "set": self.given, "drop": self.dropped, "all": self.replace_all,
        }  # fmt: skip
        return Envelope(Kind.CONFIGURE_GROUP, body=orjson.dumps(values))

    @staticmethod
    def decode(envelope: Envelope) -> "ConfigureGroup":
        values = orjson.loads(envelope.body)
        return ConfigureGroup(values["group"], values["set"], values["drop"], values["all"])
