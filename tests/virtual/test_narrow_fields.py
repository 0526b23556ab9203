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
from kproxy.config import Config
from kproxy.delays import delivery
from kproxy.metadata import group_settings, routing
from kproxy.protocol.batch import HEADER
from kproxy.protocol.guard import TEXT_BYTES_MAX
from kproxy.virtual import (
    delay_commands,
    partitioner,
    producer_rows,
    route_commands,
    rows,
    schema,
    share_commands,
    transaction_commands,
    transaction_fold,
)
from kproxy.virtual.envelope import FORM, Kind
from kproxy.virtual.route_rows import EPOCHS_MAX, PARTS_MAX
from kproxy.virtual.share_rows import COUNT_MAX
from kproxy.virtual.transaction_rows import EPOCH_MAX

MOST = {"b": 0x7F, "B": 0xFF, "h": 0x7FFF, "H": 0xFFFF, "i": 0x7FFF_FFFF, "I": 0xFFFF_FFFF}
FEW = 16
"""Forms, flags and enumerations of our own, which the code itself names."""
WIRE16, WIRE32 = 0x7FFF, 0x7FFF_FFFF
"""Numbers that a client sends in as many bits, and lengths of a frame or a part of one."""
CRC = 0xFFFF_FFFF
TEXT = TEXT_BYTES_MAX
INDEX = rows.HIDDEN | rows.HIDDEN - 1
"""Of a partition: `Config.partitions_max` stays below the bit that marks a hidden one."""
SHARDS = 100_000
EPOCH = EPOCH_MAX
VERSION = transaction_commands.SETS_CLOCK
PLACE = (2048 + 1024) << 20
"""In a segment's file: a full one, and the commit that fills it."""
ALL = 500
"""Items of one command: `NAMED_MAX`, `SET_MAX`, and less."""
ROWS = 0xFFFF_FFFF
"""As many rows of a shard as nobody has: some 50 bytes each."""
WINDOW = 1 << 24
LIMITS = {
    "commands._REMOVED": [rows.GENERATION_MAX],
    "delay_commands._LATER": [WIRE32, FEW, FEW, delay_commands.BATCHES_MAX + 1],
    "delay_commands._DUE": [
        WIRE32, FEW, delivery.BATCHES_AT_ONCE, delay_commands.BATCHES_MAX,
        delay_commands.BATCHES_MAX,
    ],
    "delay_commands._LENGTH": [WIRE32],
    "delay_rows.WAITING_BATCHES": [INDEX],
    "delay_rows.DELAYS": [INDEX],
    "delay_rows.DELAYS_DUE": [INDEX],
    "delay_rows.DELAY_ENTRIES": [INDEX],
    "envelope.HEAD": [max(Kind), FORM, INDEX],
    "envelope._CRC": [CRC],
    "group_rows._FORM": [FEW, WIRE32],
    "group_rows.member_prefix": [TEXT],
    "offset_commands._LENGTH": [TEXT],
    "offset_commands._COUNT": [WIRE32],
    "offset_commands._PARTITION": [INDEX],
    "offset_commands._EXPIRE": [WIRE32],
    "offset_commands._EXPIRED": [INDEX],
    "offset_commands._COMMIT": [WIRE32, WIRE32],
    "offset_commands._OFFSET": [INDEX, WIRE32, WIRE32],
    "producer_rows._PRODUCER": [WIRE16, producer_rows.BATCHES_REMEMBERED],
    "producer_rows._TIME": [0x81],
    "producer_rows._ID_AND_EPOCH": [WIRE16],
    "producer_rows._SENT": [WIRE32, WIRE32],
    "producer_rows._LAST_SEQUENCE": [WIRE32],
    "producer_rows._EPOCH": [WIRE16],
    "route_commands._CUT": [FEW, PARTS_MAX, route_commands.TARGETS_MAX],
    "route_commands._SHIP": [
        WIRE32, FEW, PARTS_MAX, FEW, 4 * routing.CONFIGS_MAX,
        route_commands.TARGETS_MAX,
    ],
    "route_commands._TARGET": [partitioner.NAME_LENGTH_MAX, 1 << 31 | WIRE32],
    "route_commands._LANDED": [INDEX],
    "route_commands._KEY": [TEXT + 100],  # a group, and what its FORWARDED row has before it
    "route_rows._ROUTE": [FEW, PARTS_MAX, EPOCHS_MAX],
    "route_rows._EPOCH": [WIRE32],
    "route_rows.ROUTES": [INDEX],
    "route_rows.LANDED": [INDEX],
    "route_rows._DEFINITION": [FEW, WIRE32],
    "route_rows.ends_with": [WIRE32],
    "rows._QUEUE": [rows.HIDDEN, rows.HIDDEN],
    "rows._PARTITION_KEY": [INDEX],
    "rows._PRODUCER_KEY": [INDEX],
    "rows._BATCH_KEY": [INDEX],
    "rows._PARTITION": [0xF800 | 1100],
    "rows._SPILLED": [rows.SPILLED_MAX],
    "rows._SPILLED_BY_TIME": [rows.SPILLED_MAX_BY_TIME],
    "rows._BATCH": [PLACE, WIRE32, WIRE32, rows.GENERATION_MAX + 1],
    "rows._OFFSET": [WIRE32],
    "rows._ORDERED_OFFSET": [WIRE32],
    "rows._DUE": [rows.TOMBSTONE_INDEX],
    "rows._ASSIGNMENT": [rows.HIDDEN],
    "rows._TERM": [FEW],
    "rows._STORED": [PLACE, WIRE32, WIRE32],
    "rows._MORE": [delay_commands.BATCHES_MAX + 1],
    "rows._WHOSE": [delay_commands.BATCHES_MAX + 1],
    "rows.offset_key": [INDEX],
    "rows.offset_prefix": [TEXT],
    "rows.offset_by_queue_key": [INDEX],
    "share_commands._HEAD": [FEW, TEXT, WIRE32],
    "share_commands._SET": [INDEX, FEW],
    "share_commands._SHARE": [INDEX, WIRE32, 0],
    "share_commands._RUN": [WINDOW, WINDOW, 0xFF, share_commands.OWED | FEW],
    "share_commands._PARTITION": [INDEX],
    "share_commands._QUEUE": [rows.HIDDEN],
    "share_commands._FORWARD": [FEW, FEW, INDEX, WINDOW, WINDOW, TEXT],
    "share_commands._LENGTH": [TEXT],
    "share_commands._PLACE": [WINDOW],
    "share_rows.SHARE_PARTITIONS": [INDEX, WINDOW],
    "share_rows.SHARE_STATES": [INDEX, TEXT],
    "share_rows.DEAD_LETTERS": [WINDOW, INDEX, WINDOW, COUNT_MAX, FEW],
    "share_rows.FORWARDED": [INDEX, FEW, INDEX, WINDOW],
    "share_rows.FORWARD_TARGETS": [INDEX, INDEX],
    "share_rows.SHARE_QUEUES": [TEXT],
    "share_rows.encode_initialised": [rows.HIDDEN],
    "snapshot._AS_OF": [FEW],
    "transaction_commands._LENGTH": [TEXT],
    "transaction_commands._INIT": [WIRE32, WIRE16],
    "transaction_commands._PRODUCER": [WIRE16, VERSION],
    "transaction_commands._BEGIN": [WIRE16, VERSION, ALL, ALL],
    "transaction_commands._END": [WIRE16, VERSION, FEW],
    "transaction_commands._MARKER": [FEW, EPOCH, FEW, ALL, ALL],
    "transaction_commands._PARTITION": [INDEX],
    "transaction_commands._ENLISTED": [SHARDS, 1 + TEXT],
    "transaction_commands._COMMIT": [WIRE16, WIRE32, WIRE32],
    "transaction_commands._OFFSET": [INDEX, WIRE32, WIRE32],
    "transaction_rows.Participant": [INDEX],
    "transaction_rows.TRANSACTIONS": [
        EPOCH, EPOCH, WIRE32, FEW, VERSION, EPOCH, EPOCH, transaction_fold.PARTICIPANTS_MAX,
    ],
    "transaction_rows.PARTICIPANTS": [SHARDS],
    "transaction_rows.TRANSACTIONAL_PRODUCERS": [EPOCH],
    "transaction_rows.OPEN_TRANSACTIONS": [INDEX, VERSION, EPOCH],
    "transaction_rows.OPEN_FIRSTS": [INDEX],
    "transaction_rows.ABORTED": [INDEX],
    "transaction_rows.OPEN_GROUPS": [TEXT, VERSION, EPOCH, ROWS],
    "transaction_rows.PENDING_OFFSETS": [TEXT, INDEX, 1],
    "transaction_rows.PENDING_BY_PARTITION": [TEXT, INDEX],
}  # fmt: skip
"""What may be written into each narrow field, at most, in the order of its format."""


def narrow_fields() -> Iterator[tuple[str, list[int]]]:
    """(where, what each narrow field has room for) of all that is packed in `kproxy.virtual`."""
    for module in pkgutil.iter_modules(virtual.__path__):
        made = import_module(f"kproxy.virtual.{module.name}")
        yield from _of_schemas(module.name, made)
        if made is schema:
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
                yield f"{module.name}.{_name(node)}", found


def _of_schemas(name: str, module: ModuleType) -> Iterator[tuple[str, list[int]]]:
    room = MOST | {"P": MOST["I"], "N": MOST["H"]}
    for variable, value in vars(module).items():
        if isinstance(value, schema.Keys) and f"{variable} = " in inspect.getsource(module):
            if found := [room[code] for code in value.codes if code in room]:
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
    assert HEADER.format == ">qiibIhiqqqhii"  # of a batch: last offset delta, epoch, sequence
    assert group_settings.GroupSettings().record_locks_max < WINDOW
    with pytest.raises(ValueError, match="partitions_max"):
        Config(partitions_max=rows.HIDDEN)
