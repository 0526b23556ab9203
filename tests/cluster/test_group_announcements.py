"""The settings of a group are known to all workers:

late and lost words, new owners, new workers.
"""

from typing import Any

import pytest

from kproxy.cluster import announcer
from kproxy.cluster.catalogue.rows import GROUPS
from kproxy.upstream.topic_tailer import Record
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.group_settings import GroupConfigs, decode_group_configs
from kproxy.virtual.rows.kinds import CatalogueRow
from tests.cluster.fakes import SHARDS, Member, Topic

GROUP = "workers"
HOME = shard_of(GROUP, SHARDS)


def claim(writer: int) -> Envelope:
    return Envelope(Kind.CLAIM, writer=writer)


def configure(value: str | None) -> Envelope:
    given, dropped = ({}, ["a"]) if value is None else ({"a": value}, [])
    return ConfigureGroup(GROUP, given, dropped).envelope()


def known(member: Member) -> str | None:
    row = member.cache.group_row(GROUP)
    return None if row is None else decode_group_configs(row).configs["a"]


class Story:
    """One log of a group's shard, and workers that serve it one after the other."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.log: list[Envelope] = []
        self._writers = 0
        self.listener = self.worker()

    def worker(self) -> Member:
        self._writers += 1
        return Member(self.topic, self._writers)

    async def served(self, by: Member) -> tuple[Any, Any]:
        """Serve from now on, by a worker whose copy has all of the log."""
        await by.hear()
        holder, shard = by.hold(HOME)
        self.log.append(claim(by.link.writer))
        by.fold(holder, shard, *self.log)
        holder._serve(shard, len(self.log) - 1)
        await by.tasks.run()
        await by.hear()
        return holder, shard

    async def change(self, by: Member, value: str | None) -> None:
        holder = by.holders[HOME]
        self.log.append(configure(value))
        self.log[-1].writer = by.link.writer
        by.fold(holder, holder.shard, self.log[-1])
        await by.tasks.run()


async def test_a_change_is_heard_and_the_last_one_holds() -> None:
    story = Story()
    owner, listener = story.worker(), story.listener
    await story.served(owner)
    assert known(listener) is None
    for value in ("1", "2", None, "3"):
        await story.change(owner, value)
        assert known(owner) == value  # its own, before it is in the topic
        await listener.hear()
        assert known(listener) == value
        assert list(listener.cache.configured_groups()) == [GROUP] * (value is not None)
        await owner.hear()
        assert list(owner.cache.configured_groups()) == [GROUP] * (value is not None)
    said = len(story.topic.records)
    await owner.hear()
    assert len(story.topic.records) == said  # right words are not said again


async def test_later_worker_reads_the_compacted_topic() -> None:
    story = Story()
    owner = story.worker()
    await story.served(owner)
    for value in ("1", "2"):
        await story.change(owner, value)
    late = story.worker()
    late.cache.apply(story.topic.compacted())
    assert known(late) == "2"


@pytest.mark.parametrize("value", ["2", None])
async def test_a_new_owner_says_what_was_not_said(value: str | None) -> None:
    story = Story()
    first, second = story.worker(), story.worker()
    await story.served(first)
    await story.change(first, "1")
    first.link.deaf = True  # and it dies
    await story.change(first, value)
    await story.listener.hear()
    assert known(story.listener) == "1"
    await story.served(second)
    await story.listener.hear()
    assert known(story.listener) == value == known(second)


@pytest.mark.parametrize("value", ["1", None])
async def test_announces_after_recovering_ownership(value: str | None) -> None:
    """FAULT: its own catalogue had it already, so the topic was taken to have it, too."""
    story = Story()
    owner = story.worker()
    await story.served(owner)
    if value is None:
        await story.change(owner, "0")
        await owner.hear()
    owner.link.deaf = True
    await story.change(owner, value)
    owner.link.deaf = False
    await story.served(owner)
    await story.listener.hear()
    assert known(story.listener) == value


async def test_a_takeover_says_nothing_that_the_topic_says_already() -> None:
    story = Story()
    first = story.worker()
    await story.served(first)
    await story.change(first, "1")
    said = len(story.topic.records)
    await story.served(story.worker())
    assert len(story.topic.records) == said


@pytest.mark.parametrize("late", ["old", None])
async def test_late_words_of_an_owner_that_is_none_are_put_right(late: str | None) -> None:
    story = Story()
    first, second, listener = story.worker(), story.worker(), story.listener
    await story.served(first)
    if late is not None:
        await story.change(first, late)
    zombie = first.holders[HOME].shard
    first.link.deaf = True
    await story.served(second)
    await story.change(second, "new")
    await listener.hear()
    first.link.deaf = False
    first.command_router._groups.announce(zombie, GROUP)  # held up until now
    await listener.hear()
    assert known(listener) == "new"
    await second.hear()
    assert story.topic.records[-1].value == GroupConfigs({"a": "new"}, len(story.log) - 1).encode()
    await first.hear()
    said = len(story.topic.records)
    await second.hear()
    assert len(story.topic.records) == said


async def test_a_late_word_that_nobody_put_right_is_put_right_by_the_next_owner() -> None:
    """FAULT: workers that start later would have the late word for ever."""
    story = Story()
    first, second, third = story.worker(), story.worker(), story.worker()
    await story.served(first)
    await story.change(first, "old")
    zombie = first.holders[HOME].shard
    await story.served(second)
    await story.change(second, "new")
    await third.hear()
    first.command_router._groups.announce(zombie, GROUP)
    await story.served(third)  # the second one has died before it heard of it
    late = story.worker()
    late.cache.apply(story.topic.compacted())
    assert known(late) == "new"


async def test_lost_announcement_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "_LOST_S", 0.0)
    story = Story()
    owner = story.worker()
    await story.served(owner)
    owner.link.deaf = True
    await story.change(owner, "1")
    owner.link.deaf = False
    owner.command_router._groups.say_lost()
    await story.listener.hear()
    assert known(story.listener) == "1"
    said = len(story.topic.records)
    owner.command_router._groups.say_lost()
    assert len(story.topic.records) == said


async def test_a_tombstone_that_was_missed_is_no_setting() -> None:
    story = Story()
    owner, listener = story.worker(), story.listener
    await story.served(owner)
    await story.change(owner, "1")
    await listener.hear()
    await story.change(owner, None)
    kept = [r for r in story.topic.records if r.key != GROUPS.key(GROUP)]
    listener.cache.read_again()
    listener.cache.apply(kept)
    assert known(listener) == "1"
    await listener.cache.drop_unheard()
    assert known(listener) is None
    assert not list(listener.cache.kv.scan(*CatalogueRow.SEEN.range()))
    listener.cache.read_again()
    said = GroupConfigs({"a": "2"}, 9).encode()
    listener.cache.apply([story.topic.records[-1]._replace(value=said, note=None)])
    await listener.cache.drop_unheard()
    assert known(listener) == "2"
    listener.cache.begin_again()
    assert known(listener) is None


async def test_foreign_records_are_passed_over() -> None:
    story = Story()
    key = GROUPS.key(GROUP)
    for value in (b"", b"x", b"[]", b'{"configs": 1, "changed_at": 2}', b'{"configs": {}}'):
        story.topic.records.append(Record("queues", len(story.topic.records), key, value))
    last = Record("queues", len(story.topic.records), CatalogueRow.GROUP + b"\xff", b"{}")
    story.topic.records.append(last)
    await story.listener.hear()
    assert list(story.listener.cache.configured_groups()) == []
    assert story.listener.cache.next_offset == len(story.topic.records)
