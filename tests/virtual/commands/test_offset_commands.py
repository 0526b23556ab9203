"""Commands on offsets: what is written is read, in every form there has been."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import (
    CommitOffsets,
    DeleteOffsets,
    ExpireOffsets,
    OffsetCommit,
)
from kproxy.virtual.types import QueueId

TEXT = st.text(max_size=300)
OFFSETS = st.builds(
    OffsetCommit,
    st.binary(min_size=16, max_size=16).map(QueueId),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    TEXT,
    st.booleans(),
)
IDS = st.binary(min_size=16, max_size=16).map(QueueId)
INDICES = st.integers(0, 2**32 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
FORGETS = st.builds(DeleteOffsets, TEXT, st.lists(st.tuples(IDS, INDICES), max_size=5))
EXPIRES = st.builds(
    ExpireOffsets, TEXT, TIMES, st.booleans(), st.lists(st.tuples(IDS, INDICES, TIMES), max_size=5)
)
COMMITS = st.builds(
    CommitOffsets, TEXT, TEXT, st.integers(-1, 2**31 - 1), st.lists(OFFSETS, max_size=5),
    ordered=st.just(False),
)  # fmt: skip


@given(COMMITS, st.sampled_from([1, 2, 8]))
def test_a_commit_is_read_as_it_was_written(commit: CommitOffsets, level: int) -> None:
    wanted = commit._replace(ordered=level == 8)
    assert CommitOffsets.decode(commit.envelope(level)) == wanted


@given(FORGETS, EXPIRES, st.sampled_from([1, 2]))
def test_commands_that_remove_offsets_are_read_as_they_were_written(
    forget: DeleteOffsets, expire: ExpireOffsets, level: int
) -> None:
    assert DeleteOffsets.decode(forget.envelope(level)) == forget
    assert ExpireOffsets.decode(expire.envelope(level)) == expire


def test_commits_of_the_first_logs_name_no_member_and_refuse_nothing() -> None:
    body = json.dumps({"group": "g", "offsets": [["00" * 16, 1, 7, -1, "m"]]}).encode()
    offset = OffsetCommit(QueueId(bytes(16)), 1, 7, -1, "m", False)
    assert CommitOffsets.decode(Envelope(Kind.COMMIT, body=body)) == CommitOffsets(
        "g", "", -1, [offset]
    )


def test_a_body_of_a_later_kproxy_is_refused() -> None:
    later = b"\x03" + CommitOffsets("g", "", -1, []).envelope(2).body[1:]
    for command in (CommitOffsets, DeleteOffsets, ExpireOffsets):
        with pytest.raises(ValueError, match="later one"):
            command.decode(Envelope(Kind.COMMIT, body=later))
