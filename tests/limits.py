"""The limits of kproxy, each with a tiny value for simulations, or the reason why it has none.

A fault at a limit is seen only where a test crosses it. The simulations run with all values of
`TINY` at once. A module constant that bounds a number of things and is in neither list fails
`tests/simulation/test_limits.py`.
"""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kproxy

_ROOT = Path(kproxy.__file__).parent
_BOUNDS = re.compile(
    r"(^|_)(MAX|LIMIT|AT_ONCE|REMEMBERED|INLINE|LOT|TARGETS|BATCHES|ENVELOPES|RECORDS|ROWS|NAMES"
    r"|KEYS|FRAMES|QUEUES|OFFSETS|PASSES|MESSAGES|CONNECTIONS|PIECES|WEIGHT|CHUNK|FEW|FEWER|TURN"
    r"|ELEMENTS|NAMED|NOTED|TEXTS|BATCH|READERS|PAUSE|EVERY|KEPT|PAGE|PARTS|PRODUCERS)(_|$)"
)
_OF_SOMETHING_ELSE = re.compile(r"(^|_)(BYTES|MS|S|FROM|MASK)(_|$)|_AT$|_(SAID|FLEXIBLE|ASKED)$")
"""Sizes, times, positions, versions of the protocol."""


def limits() -> Iterator[str]:
    """Yield the module constants that bound a number of things: `virtual.state._COUNTED_MAX`."""
    for path in sorted(_ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            name, value = _assigned(node)
            if name.isupper() and _BOUNDS.search(name) and not _OF_SOMETHING_ELSE.search(name):
                if isinstance(number := _constant(value), int) and number > 1:
                    yield f"{module}.{name}"


def _assigned(node: ast.stmt) -> tuple[str, ast.expr | None]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    return "", None


def _constant(value: ast.expr | None) -> object:
    """Return the value of an expression of numbers; None where it names something."""
    if value is None or any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(value)):
        return None
    return eval(compile(ast.Expression(value), "", "eval"), {"__builtins__": {}})


def make_tiny(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Give limits their tiny values, all or some, in each module that has imported them."""
    for name in names or TINY:
        module_name, _, constant = name.rpartition(".")
        module = importlib.import_module(f"kproxy.{module_name}")
        before = getattr(module, constant, None)
        if before is None:
            continue  # `test_each_limit_is_registered` says so
        patch.setattr(module, constant, TINY[name])
        if constant.startswith("_"):
            continue
        for other in list(sys.modules.values()):
            imported = getattr(other, "__name__", "").startswith("kproxy.")
            defined = f"{getattr(other, '__name__', '')[7:]}.{constant}" in REGISTERED
            if imported and not defined and getattr(other, constant, None) is before:
                patch.setattr(other, constant, TINY[name])


TINY: dict[str, int] = {
    "cluster.announcer._NOTED": 2,
    "cluster.catalogue.cache._ENDED_MAX": 2,
    "cluster.command_router._UNANSWERED_MAX": 3,
    "cluster.lost_end._AT_ONCE": 2,
    "cluster.node._RECORDS": 2,
    "cluster.publisher._ROWS_AT_ONCE": 2,
    "cluster.publisher._UNMARKED_AT_ONCE": 1,
    "cluster.rebuild._NAMES": 2,
    "cluster.rebuild._RECORDS": 3,
    "delays.delays._REMEMBERED_MAX": 2,
    "delays.delivery.BATCHES_AT_ONCE": 2,
    "delays.looker._PARTITIONS_AT_ONCE": 1,
    "delays.looker._NOTED_MAX": 2,
    "delays.splitting._BLAMED_MAX": 1,
    "delays.splitting._FEWER": 2,
    "delays.splitting.GROUPS_MAX": 4,
    "delays.splitting._TOLD_MAX": 1,
    "fetching.aborted.ROWS_MAX": 2,
    "fetching.context.AT_ONCE": 1,
    "groups.requests.classic_rebalance._ANSWERS_AT_ONCE": 1,
    "groups.upkeep.restoring._QUEUES_AT_ONCE": 1,
    "groups.upkeep.restoring._ROWS_AT_ONCE": 1,
    "groups.upkeep.timers._AT_ONCE": 1,
    "groups.upkeep.timers._PLACES_KEPT": 1,
    "log.shared._PIECE_WEIGHT": 2,
    "log.shared._READY_MAX": 2,
    "loop.pace._COUNTED_AT_ONCE": 2,
    "loop.pace.FREED_AT_ONCE": 2,
    "loop.pace._LET_GO_AT_ONCE": 2,
    "loop.pace._LOT": 2,
    "loop.steps.AT_ONCE": 1,
    "loop.steps.EVERY": 2,
    "metadata.catalogue._COMING_KEPT": 1,
    "metadata.group_settings._PARSED_MAX": 1,
    "metadata.queue_settings._PARSED_MAX": 1,
    "metadata.routing._PARSED_MAX": 1,
    "routes.cutting.CUT_TARGETS": 3,
    "routes.cutting.PART_TARGETS": 1,
    "routes.passages._AT_ONCE": 1,
    "routes.passages._FORGET_FORWARDED_MAX": 1,
    "routes.passages._FORGET_MAX": 1,
    "routes.passages._GONE_MAX": 2,
    "routes.passages._LOOKED_AT_AT_ONCE": 1,
    "routes.reading._BATCHES_MAX": 2,
    "routes.reading.KEPT_RECORDS_MAX": 5,
    "shard.appends.TICKET_MAX": 2,
    "shard.compaction_keys._ABORTED_AT_ONCE": 2,
    "shard.compaction_pass.KEYS_MAX": 3,
    "shard.compactor._LOOKS_AT_ONCE": 1,
    "shard.compactor._PASSES": 2,
    "shard.compactor._UNREADABLE_MAX": 1,
    "shard.copier._AHEAD_MAX": 1,
    "shard.copier._COPY_ENVELOPES": 2,
    "shard.copier._CURSORS_MAX": 1,
    "shard.copier._LOOK_FRAMES": 2,
    "shard.housekeeper._DELETIONS_MAX": 2,
    "shard.housekeeper._ROWS_AT_ONCE": 2,
    "shard.housekeeper._SWEPT_MAX": 2,
    "shard.retention._ROWS_AT_ONCE": 1,
    "shard.retention_marks._MARKS_MAX": 2,
    "shard.shard._CHANGED_MAX": 2,
    "shard.shard._REPLAY_BATCH": 2,
    "shard.shard._UNCOMPACTED_MAX": 2,
    "protocol.record_starts._DENSE_MAX": 3,
    "shares.acknowledging.BATCHES_MAX": 3,
    "shares.acknowledging._AT_ONCE": 2,
    "shares.dead_letter_batches.OFFSETS_MAX": 2,
    "shares.dead_letter_batches._ROWS_MAX": 1,
    "shares.dead_letters.OWED_MAX": 3,
    "shares.dead_letter_sender._AT_ONCE": 1,
    "shares.dead_letter_sender._HELD_MAX": 4,
    "shares.dead_letter_sender._LOT": 2,
    "shares.dead_letter_sender._SETTLED_MAX": 1,
    "shares.lanes.line.PART_MAX": 4,
    "shares.lanes.line.PASSES_MAX": 3,
    "shares.lanes.line._JOINED_MAX": 2,
    "shares.lanes.line._WAITS_MAX": 2,
    "shares.lanes.ring.TATS_MAX": 2000,
    "shares.lanes.records._CLEANED_MAX": 2,
    "shares.lanes.records._LINKED_MAX": 2,
    "shares.lanes.lane_window._HOLE_MAX": 4,
    "shares.lanes.lane_window._RUNS_MAX": 2,
    "shares.lanes.lane_window._TAKEN_MAX": 40,
    "shares.lanes.batch_ends._RECORDS_MIN": 2,
    "shares.lanes.reading._JOINED_MAX": 2,
    "shares.lanes.reading._RUN_MAX": 2,
    "shares.lanes.records._EXPIRED_MAX": 2,
    "shares.lanes.share_lanes._AT_ONCE": 2,
    "shares.lanes.share_lanes._BATCHES_MAX": 2,
    "shares.lanes.share_lanes._HELD_AT_ONCE": 2,
    "shares.lanes.share_lanes._RECORDS_MAX": 4,
    "shares.poll._FOUND_MAX": 2,
    "shares.sessions._AT_ONCE": 1,
    "shares.share_partition._COMMITTED_MAX": 2,
    "shares.share_partition._LOOKED_AT_MAX": 2,
    "shares.share_partitions._COST_MAX": 2,
    "shares.window._GAP_MAX": 4,
    "shares.window._RESUMED_MAX": 2,
    "store.rocks._BEHIND_MAX": 2,
    "transactions.coordinator._BEGUN_MAX": 2,
    "transactions.coordinator._DRIVEN_MAX": 1,
    "transactions.coordinators._ROWS_AT_ONCE": 1,
    "virtual.counts._STEP_ROWS": 2,
    "virtual.commands.delays.BATCHES_MAX": 2,
    "virtual.folds.groups._FEW": 1,
    "virtual.folds.open_firsts.OFFSETS_MAX": 3,
    "virtual.folds.route_definitions._SOURCES_MAX": 1,
    "virtual.folds.open_firsts.PARTITIONS_MAX": 1,
    "virtual.folds.groups._FORGOTTEN_MAX": 2,
    "virtual.commands.producers.FORGOTTEN_MAX": 1,
    "virtual.producers.PRODUCERS_INLINE": 1,
    "virtual.rows.routes.PARTS_MAX": 2,
    "virtual.commands.shares.SET_MAX": 2,
    "virtual.snapshot._REMEMBERED_MAX": 2,
    "virtual.reindex._ROWS_AT_ONCE": 2,
    "virtual.snapshot._ROWS_AT_ONCE": 2,
    "virtual.state._COUNTED_MAX": 2,
    "virtual.state._SHIPPED_TO_MAX": 2,
    "virtual.writers._WRITERS_MAX": 8,  # fewer than begin between two copies
    "virtual.commands.traits.TURN": 3,
    "virtual.commands.transactions.MARKED_MAX": 2,
    "virtual.commands.transactions.NAMED_MAX": 2,
    "virtual.folds.transactions.PARTICIPANTS_MAX": 3,
    "virtual.folds.transactions._ROWS_AT_ONCE": 1,
    "worker.refused_batches._MAX": 2,
}

FIXED: dict[str, str] = {
    "No simulation runs this code: tests of its own package cross it.": """
        admin_socket.server._CONNECTIONS_MAX cluster.joining._OPENING_MAX cluster.lost_end.LOST_MAX
        fetching.streamed_response._READS_MAX fetching.streamed_response._BATCHES_AT_ONCE
        fetching.streamed_response.BATCHES_MAX fetching.streamed_response._BUFFERS_MAX
        fetching.streamed_response._GAP_MAX
        groups.model.counters._REGEXES_MAX groups.upkeep.group_deletion._OFFSETS_AT_ONCE
        groups.upkeep.offset_expiry._ROWS_AT_ONCE groups.upkeep.offset_expiry._OFFSETS_MAX
        groups.assigning.subscriptions._MATCHES_MAX groups.assigning.subscriptions._TEXTS
        groups.assigning.subscriptions._NAMES handlers.access.acls._AT_ONCE
        handlers.configs.describe._PARTITIONS_MAX handlers.configs.lanes._PARTITIONS_MAX
        handlers.configs.letters._OFFSETS_MAX handlers.configs.letters._ROWS_AT_ONCE
        handlers.configs.letters._KINDS_MAX handlers.configs.jobs._JOBS_MAX
        server.bulk_jobs._LOT
        shares.lanes.standing._COUNTED_AT_ONCE handlers.fetch.fetch._TEXTS_MAX
        handlers.groups.admin._DELETED_AT_ONCE handlers.groups.admin._BEGUN_AT_ONCE
        handlers.groups.streams_endpoints._AT_ONCE
        handlers.common.hearing._AT_ONCE
        groups.model.topology._TOPICS_MAX groups.model.topology._SUBTOPOLOGIES_MAX
        groups.assigning.configured_topology.TASKS_MAX
        handlers.common.creations._PARTITIONS_AT_ONCE handlers.common.creations._CREATED_AT_ONCE
        handlers.shares.offsets._AT_ONCE
        handlers.produce.inspection._BLAMED_MAX handlers.common.by_time._ROWS_AT_ONCE
        handlers.topics.metadata._QUEUES_AT_ONCE handlers.topics.metadata._CREATED_AT_ONCE
        handlers.topics.operations._ROWS_AT_ONCE handlers.produce.call._NAMED
        handlers.produce.guard._BATCHES_AT_ONCE handlers.topics.topic_partitions._SORTED_AT_ONCE
        handlers.topics.topic_partitions._PAGE_MAX handlers.topics.topics._DELETED_AT_ONCE
        handlers.topics.topic_partitions._LOT handlers.topics.topic_partitions._LOOKED_MAX
        handlers.topics.topics._PARTITIONS_AT_ONCE handlers.transactions.admin._LISTED_MAX
        handlers.common.committing.OFFSETS_AT_ONCE handlers.common.committing._METADATA_AT_ONCE
        handlers.access.users._NAMES_AT_ONCE
        handlers.access.users._AT_ONCE loop.garbage._STEPS_MAX observe.http_thread.CONNECTIONS_MAX
        observe.http_thread.UNREAD_MAX observe.http_thread._HEAD_LINES_MAX
        observe.http_thread.PAGES_MAX observe.http_thread._PARTS observe.selected._LOT
        observe.top_page._PARTITIONS_MAX protocol.codecs._BLOCKS_MAX
        protocol.responses._CACHED_PARTITIONS_MAX
        security.cache.ROWS_MAX security.hashing._ADDRESSES_MAX security.oauth._KEYS_MAX
        security.oauth._TRIED_MAX security.permits._CACHED_MAX security.permits._PEERS_MAX
        security.quotas.METERS_MAX security.quotas._FOUND_MAX security.quotas._SHARED_MAX
        server.attempts.AT_ONCE server.attempts._ADDRESSES_MAX server.audit._NAMES_MAX
        server.audit._CODES_AT_ONCE server.large_requests.ELEMENTS_AT_ONCE
        server.large_requests.PRODUCE_ELEMENTS server.large_requests.ANSWER_WEIGHT
        server.login_connection._ELEMENTS_MAX server.user_commands._AT_ONCE
        delays.schedules._PARSED_MAX delays.schedules._PASSED_MAX
        delays.listing._BATCHES_MAX delays.listing._RECORDS_MAX
        tools.records.waiting._LIMIT
        console.app._LOGINS_AT_ONCE console.connections._IDLE_MAX console.serving._CONNECTIONS_MAX
        console.sessions._ADDRESSES_MAX
        console.sessions._SESSIONS_MAX tools.views._LOOKS_MAX
        tools.records.walks._PAGES_MAX tools.records.waiting._STATES_AT_ONCE
        console.sessions._OF_USER_MAX console.app._WAITING_FOR_EACH_MAX
        tools.admin.transactions._DESCRIBED_AT_ONCE
        shard.expiry.idle_queues._QUEUES_AT_ONCE shares.expiries._BATCHES_MAX
        shares.expiries._OF_BATCH_MAX shares.expiries._TIMES_MAX shares.share_partition._TIMED_MAX
        virtual.folds.idle._LOOKED_AT_MAX
        shard.producer_expiry._PARTITIONS_AT_ONCE shares.sessions.PER_CONNECTION_MAX
        tools.administration._BATCH tools.client.PAGE tools.records.consume._AT_ONCE
        tools.records.consume._PARTITIONS_MAX tools.records.input._CHUNK
        tools.records.produce._POLL_EVERY worker.worker._SECURED_AT_ONCE
        spark.columns._UNPACKED_MAX spark.planning._NAMES_AT_ONCE spark.reading._AT_ONCE
        spark.reading._EMPTY_MAX
    """,
    "Bounds what a person is shown.": """
        metadata.group_settings._SHOWN_MAX config.server._SHOWN_MAX common.errors._MESSAGE_MAX
        handlers.access.acls._TOLD_MAX handlers.produce.inspection._TOLD_MAX
        handlers.access.quotas._TOLD_MAX common.logs._TEXT_MAX common.logs._TOLD_CLIENTS_MAX
        common.logs._ITEMS_MAX common.logs._TRACE_MAX common.logs._KEYS_MAX
        common.logs._NAMED_CLIENTS_MAX metadata.setting._SHOWN_MAX observe.selected._PREFIX_MAX
        shares.lanes.standing._SHOWN_MAX tools.output.SHOWN_MAX tools.records.input._DIGITS_MAX
        tools.commands._LIMIT tools.records.batches._NOTES_MAX console.groups._QUEUES_SHOWN
        console.cluster._SHOWN_MAX console.groups._SHOWN_MAX
        tools.records.letters._PARTITIONS_MAX
        console.queues._SHOWN_MAX console.records._PARTITIONS_MAX console.shown._INDENT_MAX
    """,
    "What a request or a setting may ask for: what is more is refused, with a message.": """
        console.forms._FIELDS_MAX console.pages._TEXT_MAX console.changes._VALUE_MAX
        console.changes._PARTITIONS_MAX
        console.sending._FORM_CHARACTERS_MAX
        config.issuers.ISSUERS_MAX config.listeners._LISTENERS_MAX delays.schedules._LINE_MAX
        delays.delivery.UNPACKED_MAX groups.requests.streams_heartbeat._TAGS_MAX
        handlers.topics.operations._PARTITIONS_MAX metadata.group_settings._VALUE_MAX
        metadata.group_values.BACKOFFS_MAX metadata.queue_settings.VALUE_MAX
        metadata.lane_settings._NAME_MAX metadata.redrive_settings._JOB_MAX
        metadata.lane_settings._RATE_MAX metadata.lane_settings._WEIGHT_MAX
        metadata.route_settings.ENTRANCE_PARTITIONS_MAX metadata.routing.TEXT_MAX
        metadata.routing.CONFIGS_MAX metadata.routing._PARTS_MAX protocol.codec._HEADER_TAGS_MAX
        protocol.codec.ELEMENTS_MAX routes.cutting.RECORD_MAX shares.window.WINDOW_MAX
        virtual.rows.routes.DEFINITIONS_MAX virtual.rows.routes.EPOCHS_MAX
        routes.redriving._DIGITS_MAX
    """,
    "Not a bound: a share, a step of a counter, or a name for something else.": """
        common.counters.TIMED_EVERY groups.model.assigned_group._ROWS
        groups.upkeep.offset_expiry._PAUSE groups.upkeep.restoring._ROW_PARTS
        routes.services._READERS shard.expiry.idle_queues._PAUSE
        shard.retention._PAUSE shares.lanes.table._PARTS
        shard.shard._ROWS_CACHED_MIN shares.dead_letter_targets._READERS
        shares.share_partitions._READERS virtual.commands.queues._ROWS
    """,
    "The protocol, a format on disk or an operating system says so.": """
        cluster.lost_end._OFFSETS_END cluster.lost_end._OFFSETS_MAX fetching.sessions.EPOCH_MAX
        groups.requests.share_heartbeat.MEMBER_ID_MAX
        handlers.shares.answers._MEMBER_ID_MAX protocol.batch.RECORDS_PER_BYTE_MAX
        protocol.codecs.SNAPPY_RATIO_MAX protocol.records.TIME_MAX routes.cutting._FRAMED_MAX
        spark.columns._TIME_MAX
        routes.reading._LAST_DELTA_MAX security.permits._NAME_MAX security.quotas.CLIENT_ID_MAX
        shares.sessions.EPOCH_MAX store.files._IOV_MAX store.tail._KEPT
        upstream.producer._KBYTES_MAX virtual.partitioner.NAME_LENGTH_MAX
        virtual.rows.producers.BATCHES_REMEMBERED virtual.producers._SEQUENCE_MAX
        virtual.commands.routes.TARGETS_MAX virtual.rows.queues._PRODUCERS virtual.rows.queues._KEPT
        virtual.rows.batches.GENERATION_MAX virtual.rows.shares.CHUNK virtual.rows.shares.COUNT_MAX
        virtual.rows.transactions.EPOCH_MAX worker.refused_batches._SEQUENCE_MAX
    """,
    "Bounds memory of a client library or of files, which simulations replace.": """
        log.local._COMMIT_ENVELOPES protocol.record_runs.RUN_RECORDS shard.verification._OPEN_MAX
        store.damage._KNOWN_MAX store.segments._OPEN_FILES_MAX upstream.log_reader._MESSAGES_AT_ONCE
        upstream.log_reader._HOLE_MAX upstream.native_producer._EVENTS_A_TURN
        upstream.producer._RECORDS_MAX upstream.read_topic._MESSAGES_AT_ONCE
        upstream.topic_tailer._MESSAGES_AT_ONCE
    """,
    "Logs of earlier releases are folded by it.": """
        virtual.rows.groups._EVERY virtual.folds.shares._MOVED_MAX
        virtual.producers.PRODUCERS_REMEMBERED virtual.producers._FORGOTTEN_AT_ONCE
    """,
}
"""The reasons, each with the limits that it holds for."""

REGISTERED = TINY.keys() | {name for names in FIXED.values() for name in names.split()}
