"""Fields of 8, 16 and 32 bits in rows and commands: each has a limit that keeps it in range.

A number that does not fit its field raises while a row is encoded: what led to it is in the log,
and each start raises again. So nothing may reach a narrow field that nothing bounds.
"""

import ast
import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from kproxy import virtual
from kproxy.config.server import Config
from kproxy.delays import delivery
from kproxy.metadata import group_settings, routing
from kproxy.protocol.batch import HEADER
from kproxy.protocol.guard import TEXT_BYTES_MAX
from kproxy.virtual import fields, partitioner, schema
from kproxy.virtual.commands import delays as delay_commands
from kproxy.virtual.commands import forms
from kproxy.virtual.commands import routes as route_commands
from kproxy.virtual.commands import shares as share_commands
from kproxy.virtual.commands import transactions as transaction_commands
from kproxy.virtual.commands.envelope import FORM, Kind
from kproxy.virtual.commands.traits import COMMANDS, FORMS
from kproxy.virtual.folds import transactions as transaction_fold
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import producers as producer_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.routes import EPOCHS_MAX, PARTS_MAX
from kproxy.virtual.rows.shares import COUNT_MAX
from kproxy.virtual.rows.transactions import EPOCH_MAX

MOST = {"b": 0x7F, "B": 0xFF, "h": 0x7FFF, "H": 0xFFFF, "i": 0x7FFF_FFFF, "I": 0xFFFF_FFFF}
FEW = 16
"""Forms, flags and enumerations of our own, which the code itself names."""
WIRE16, WIRE32 = 0x7FFF, 0x7FFF_FFFF
"""Numbers that a client sends in as many bits, and lengths of a frame or a part of one."""
CRC = 0xFFFF_FFFF
TEXT = TEXT_BYTES_MAX
INDEX = rows.HIDDEN | rows.HIDDEN - 1
"""The index of a partition: `Config.partitions_max` stays below the bit of a hidden one."""
SHARDS = 100_000
EPOCH = EPOCH_MAX
VERSION = transaction_commands.SETS_CLOCK
PLACE = (2048 + 1024) << 20
"""The place in a segment's file: a full one, and the commit that fills it."""
ALL = 500
"""Items of one command: `NAMED_MAX`, `SET_MAX`, and less."""
ROWS = 0xFFFF_FFFF
"""The number of rows of a shard that nobody has: some 50 bytes each."""
WINDOW = 1 << 24
LIMITS = {
    "commands.records._REMOVED": [batch_rows.GENERATION_MAX],
    "commands.records.EXPECTED": [FEW],
    "commands.delays._LATER": [WIRE32, FEW, FEW, delay_commands.BATCHES_MAX + 1],
    "commands.delays._DUE": [
        WIRE32, FEW, delivery.BATCHES_AT_ONCE, delay_commands.BATCHES_MAX,
        delay_commands.BATCHES_MAX,
    ],
    "commands.delays._LENGTH": [WIRE32],
    "commands.delays._DIGESTS": [delay_commands.BATCHES_MAX],
    "commands.delays._DIGEST": [FEW],
    "commands.delays._KEYED": [delay_commands.SCHEDULED_EPOCH],
    "rows.delays.WAITING_BATCHES": [INDEX],
    "rows.delays.WAITING_KEYS": [INDEX],
    "rows.delays.DELAYS": [INDEX],
    "rows.delays.DELAYS_DUE": [INDEX],
    "rows.delays.DELAY_ENTRIES": [INDEX],
    "commands.envelope.HEAD": [max(Kind), FORM, INDEX],
    "commands.envelope._CRC": [CRC],
    "rows.groups._FORM": [FEW, WIRE32],
    "rows.groups.member_key": [TEXT],
    "commands.offsets._DELETION": [FEW, TEXT, WIRE32],
    "commands.offsets._PARTITION": [INDEX],
    "commands.offsets._EXPIRY": [FEW, TEXT, WIRE32],
    "commands.offsets._EXPIRED": [INDEX],
    "commands.offsets._COMMIT": [WIRE32, WIRE32],
    "commands.offsets._OFFSET": [INDEX, WIRE32, WIRE32],
    "rows.producers._PRODUCER": [WIRE16, producer_rows.BATCHES_REMEMBERED],
    "rows.producers._TIME": [0x81],
    "rows.producers._ID_AND_EPOCH": [WIRE16],
    "rows.producers._SENT": [WIRE32, WIRE32],
    "rows.producers._LAST_SEQUENCE": [WIRE32],
    "rows.producers._EPOCH": [WIRE16],
    "commands.routes.Cut": [PARTS_MAX, route_commands.TARGETS_MAX],
    "commands.routes._SHIP": [
        WIRE32, FEW, PARTS_MAX, FEW, 4 * routing.CONFIGS_MAX,
        route_commands.TARGETS_MAX,
    ],
    "commands.routes._TARGET": [partitioner.NAME_LENGTH_MAX, 1 << 31 | WIRE32],
    "commands.routes._LANDED": [INDEX],
    "commands.routes._KEY": [TEXT + 100],  # a group, and what its FORWARDED row has before it
    "rows.routes._ROUTE": [FEW, PARTS_MAX, EPOCHS_MAX],
    "rows.routes._EPOCH": [WIRE32],
    "rows.routes.ROUTES": [INDEX],
    "rows.routes.ROUTE_PARTS": [INDEX],
    "rows.routes._DEFINITION": [WIRE32],
    "rows.routes.ends_with": [WIRE32],
    "rows.idle.IDLE_DUE": [INDEX],
    "rows.idle.IDLE": [INDEX],
    "rows.queues._QUEUE": [rows.HIDDEN, rows.HIDDEN],
    "rows.queues._PARTITION_KEY": [INDEX],
    "rows.queues._PRODUCER_KEY": [INDEX],
    "rows.batches._BATCH_KEY": [INDEX],
    "rows.queues._PARTITION": [0xF800 | 1100],
    "rows.queues._SPILLED": [rows.SPILLED_MAX],
    "rows.queues._SPILLED_BY_TIME": [rows.SPILLED_MAX_BY_TIME],
    "rows.batches._BATCH": [PLACE, WIRE32, WIRE32, batch_rows.GENERATION_MAX + 1],
    "rows.offsets._OFFSET": [WIRE32],
    "rows.offsets._ORDERED_OFFSET": [WIRE32],
    "rows.queues._DUE": [rows.TOMBSTONE_INDEX],
    "rows.queues._ASSIGNMENT": [rows.HIDDEN],
    "rows.queues.retention_entry_key": [INDEX],
    "rows.queues.producers_due_key": [INDEX],
    "rows.queues.compaction_key": [INDEX],
    "rows.batches._STORED": [PLACE, WIRE32, WIRE32],
    "rows.batches._MORE": [delay_commands.BATCHES_MAX + 1],
    "rows.batches._WHOSE": [delay_commands.BATCHES_MAX + 1],
    "rows.offsets.offset_key": [INDEX],
    "rows.offsets.offset_prefix": [TEXT],
    "rows.offsets.offset_by_queue_key": [INDEX],
    "commands.shares._HEAD": [FEW, TEXT, WIRE32],
    "commands.shares.SetShares": [TEXT, WIRE32, INDEX, FEW],
    "commands.shares._SHARE": [INDEX, WIRE32, 0],
    "commands.shares._RUN": [WINDOW, WINDOW, 0xFF, share_commands.OWED | FEW],
    "commands.shares._HOLD": [INDEX],
    "commands.shares.FreeLanes": [INDEX, TEXT],
    "commands.shares.LookAtShares": [TEXT, WIRE32, INDEX],
    "commands.shares.AimForward": [INDEX],
    "commands.shares.NoteShareQueues": [TEXT, WIRE32, rows.HIDDEN],
    "commands.shares._FORWARD": [FEW, FEW, INDEX, WINDOW, WINDOW, TEXT],
    "commands.shares._LENGTH": [TEXT],
    "commands.shares.SettleForward": [TEXT, WIRE32, WINDOW],
    "rows.shares.SHARE_PARTITIONS": [INDEX, WINDOW],
    "rows.shares.SHARE_STATES": [INDEX, TEXT],
    "rows.shares.HELD_LANES": [INDEX, TEXT],
    "rows.shares.DEAD_LETTERS": [WINDOW, INDEX, WINDOW, COUNT_MAX, FEW],
    "rows.shares.FORWARDED": [INDEX, FEW, INDEX, WINDOW],
    "rows.shares.FORWARD_TARGETS": [INDEX, INDEX],
    "rows.shares.SHARE_QUEUES": [TEXT],
    "rows.shares.encode_initialised": [rows.HIDDEN],
    "snapshot._AS_OF": [FEW],
    "commands.transactions.InitProducer": [WIRE32, WIRE16],
    "commands.transactions._ENLIST": [FEW, WIRE16, VERSION, TEXT],
    "commands.transactions.Begin": [WIRE16, VERSION, ALL, ALL, INDEX, TEXT],
    "commands.transactions.End": [WIRE16, VERSION, FEW],
    "commands.transactions._MARKER": [FEW, EPOCH, FEW, ALL, ALL],
    "commands.transactions.Marker": [EPOCH, ALL, ALL, INDEX, TEXT],
    "commands.transactions._PARTITION": [INDEX],
    "commands.transactions._ENLISTED": [SHARDS, 1 + TEXT],
    "commands.transactions._COMMIT": [WIRE16, WIRE32, WIRE32],
    "rows.transactions.Participant": [INDEX],
    "rows.transactions.TRANSACTIONS": [
        EPOCH, EPOCH, WIRE32, FEW, VERSION, EPOCH, EPOCH, transaction_fold.PARTICIPANTS_MAX,
    ],
    "rows.transactions.PARTICIPANTS": [SHARDS],
    "rows.transactions.TRANSACTIONAL_PRODUCERS": [EPOCH],
    "rows.transactions.OPEN_TRANSACTIONS": [INDEX, VERSION, EPOCH],
    "rows.transactions.OPEN_FIRSTS": [INDEX],
    "rows.transactions.ABORTED": [INDEX],
    "rows.transactions.OPEN_GROUPS": [TEXT, VERSION, EPOCH, ROWS],
    "rows.transactions.PENDING_OFFSETS": [TEXT, INDEX, 1],
    "rows.transactions.PENDING_BY_PARTITION": [TEXT, INDEX],
}  # fmt: skip
"""The largest values of each narrow field, in the order of its format."""


def narrow_fields() -> Iterator[tuple[str, list[int]]]:
    """Yield (where, the room of each narrow field) of all that is packed in `kproxy.virtual`."""
    for module in pkgutil.walk_packages(virtual.__path__, "kproxy.virtual."):
        made, name = import_module(module.name), module.name.removeprefix("kproxy.virtual.")
        yield from _of_schemas(name, made)
        yield from _of_forms(name)
        if made in (fields, forms, schema):
            continue
        tree = ast.parse(inspect.getsource(made))
        for node in tree.body:
            formats = [
                call.args[0].value
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("struct.")
                and isinstance(call.args[0], ast.Constant)
            ]  # fmt: skip
            numbers = [
                call.args[0].value
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
                and call.func.attr == "to_bytes" and isinstance(call.args[0], ast.Constant)
            ]  # fmt: skip
            found = [MOST[code] for text in formats for code in str(text) if code in MOST]
            found += [(1 << 8 * int(size)) - 1 for size in numbers if int(size) < 8]  # type: ignore[arg-type]
            if found:
                yield f"{name}.{_name(node)}", found


ROOM = MOST | {"P": MOST["I"], "N": MOST["H"], "Y": MOST["H"], "Z": MOST["I"]}


def _of_forms(name: str) -> Iterator[tuple[str, list[int]]]:
    """Yield fields of commands of this module that have a form."""
    for kind, body in FORMS.items():
        if COMMANDS[kind].__module__ == f"kproxy.virtual.{name}":
            if found := [ROOM[code] for codes in body for code in codes if code in ROOM]:
                yield f"{name}.{COMMANDS[kind].__name__}", found


def _of_schemas(name: str, module: ModuleType) -> Iterator[tuple[str, list[int]]]:
    for variable, value in vars(module).items():
        if isinstance(value, schema.Keys | fields.Fields) and f"{variable} = " in inspect.getsource(
            module
        ):
            if found := [ROOM[code] for code in value.codes if code in ROOM]:
                yield f"{name}.{variable}", found


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    return node.name


def test_each_narrow_field_has_a_limit_that_fits() -> None:
    found = dict(narrow_fields())
    assert found.keys() == LIMITS.keys(), "name what keeps a new field in range"
    for where, room in found.items():
        assert len(room) == len(LIMITS[where]), where
        assert all(map(int.__le__, LIMITS[where], room)), where


def test_the_limits_are_those_that_are_kept() -> None:
    assert (transaction_commands.NAMED_MAX, share_commands.SET_MAX) == (ALL, ALL)
    assert Config.model_fields["shards"].metadata[-1].le == SHARDS  # type: ignore[attr-defined]
    assert HEADER.format == ">qiibIhiqqqhii"  # a batch's: last offset delta, epoch, sequence
    assert group_settings.GroupSettings().record_locks_max < WINDOW
    with pytest.raises(ValueError, match="partitions_max"):
        Config(partitions_max=rows.HIDDEN)
