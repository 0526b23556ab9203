"""Commands: one class for each kind of envelope, with its fields, its bytes and its traits.

`envelope` encodes, `decode` reads. Bytes are written to logs for ever: a class never changes the
meaning of a form that was written. There is a module for each family.

To add a kind: add it to `Kind`, write its class in
its family's module, and name its method in `Fold.__init__`. `of_kind` asks
for its traits and its level; `tests/virtual/commands/test_commands.py` holds each kind against
them. A form (`forms`) gives its bytes, unless it is hot or carries batches.

Classes are named tuples: frozen, and three times as fast to make as frozen dataclasses (measured).
"""

from kproxy.virtual.commands import (
    access,
    delays,
    group_settings,
    groups,
    jobs,
    offsets,
    producers,
    queues,
    records,
    restore,
    routes,
    shards,
    shares,
    transactions,
)

__all__ = [
    "access", "delays", "group_settings", "groups", "jobs", "offsets", "producers", "queues",
    "records", "restore", "routes", "shards", "shares", "transactions",
]  # fmt: skip
