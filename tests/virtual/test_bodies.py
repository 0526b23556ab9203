"""Bodies of commands: what is written is read, in every form there has been."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.virtual.bodies import (
    Commit,
    Expire,
    Forget,
    OffsetCommit,
    decode_commit,
    decode_expire,
    decode_forget,
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
FORGETS = st.builds(Forget, TEXT, st.lists(st.tuples(IDS, INDICES), max_size=5))
EXPIRES = st.builds(
    Expire, TEXT, TIMES, st.booleans(), st.lists(st.tuples(IDS, INDICES, TIMES), max_size=5)
)
COMMITS = st.builds(Commit, TEXT, TEXT, st.integers(-1, 2**31 - 1), st.lists(OFFSETS, max_size=5))


@given(COMMITS, st.sampled_from([1, 2]))
def test_a_commit_is_read_as_it_was_written(commit: Commit, level: int) -> None:
    assert decode_commit(commit.encode(level)) == commit


@given(FORGETS, EXPIRES, st.sampled_from([1, 2]))
def test_what_takes_offsets_away_is_read_as_it_was_written(
    forget: Forget, expire: Expire, level: int
) -> None:
    assert decode_forget(forget.encode(level)) == forget
    assert decode_expire(expire.encode(level)) == expire


def test_commits_of_the_first_logs_name_no_member_and_refuse_nothing() -> None:
    body = json.dumps({"group": "g", "offsets": [["00" * 16, 1, 7, -1, "m"]]}).encode()
    offset = OffsetCommit(QueueId(bytes(16)), 1, 7, -1, "m", False)
    assert decode_commit(body) == Commit("g", "", -1, [offset])


def test_a_body_of_a_later_kproxy_is_refused() -> None:
    later = b"\x02" + Commit("g", "", -1, []).encode(2)[1:]
    for decode in (decode_commit, decode_forget, decode_expire):
        with pytest.raises(ValueError, match="later one"):
            decode(later)
