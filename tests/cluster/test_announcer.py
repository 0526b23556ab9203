"""Announcements and their effect: names made again, late words, sweeps."""

from typing import Any

import pytest

from kproxy.cluster import announcer
from kproxy.cluster.catalogue.cache import CatalogueCache, Tombstone, announcement
from kproxy.cluster.remote_cleanup import RemoteQueueCleanup
from kproxy.log.base import Ticket
from kproxy.metadata.catalogue import QueueIds
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import ExpireQueue
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.idle import IDLE_MS
from kproxy.virtual.rows.queues import COMPARE_KEY
from kproxy.virtual.types import QueueId
from tests.cluster.fakes import SHARDS, Member, Topic
from tests.commands import command
from tests.fakes import DictKv
from tests.present import present

NAME = "orders"
HOME = shard_of(NAME, SHARDS)
GROUP = next(f"g{i}" for i in range(99) if shard_of(f"g{i}", SHARDS) != HOME)
GROUPS = shard_of(GROUP, SHARDS)


def create(partitions: int = 1, name: str = NAME, **configs: str) -> Envelope:
    values = {"name": name, "partitions": partitions, "configs": configs}
    return command(Kind.CREATE, QueueIds(SHARDS).new(HOME), values=values)


def delete(of: Envelope) -> Envelope:
    return command(Kind.DELETE, of.queue_id)


def claim(writer: int) -> Envelope:
    return Envelope(Kind.CLAIM, writer=writer)


def commit(queue_id: QueueId) -> Envelope:
    offsets = [[queue_id.hex(), 0, 7, -1, "", False]]
    return command(Kind.COMMIT, values={"group": GROUP, "offsets": offsets})


class Story:
    """A queue deleted and made again while one worker served its home; others have heard of it."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.old, self.new = create(), create()
        self.log = [claim(1), self.old, delete(self.old), self.new]
        self.first = Member(self.topic, 1)
        self.listener = Member(self.topic, 2)

    async def served(self) -> None:
        holder, shard = self.first.hold(HOME)
        self.first.fold(holder, shard, self.log[0])
        holder._serve(shard, 0)
        await self.first.tasks.run()
        self.first.fold(holder, shard, *self.log[1:])
        await self.first.tasks.run()
        await self.first.hear()
        await self.listener.hear()

    async def taken_over(self, by: Member) -> tuple[Any, Any]:
        """Take over: a worker with an older copy folds what it missed, then claims and serves."""
        await by.hear()
        holder, shard = by.hold(HOME)
        self.log.append(claim(by.link.writer))
        by.fold(holder, shard, *self.log)
        holder._serve(shard, len(self.log) - 1)
        await by.tasks.run()
        return holder, shard


@pytest.fixture
async def story() -> Story:
    story = Story()
    await story.served()
    return story


async def test_old_deletions_are_not_announced_again(story: Story) -> None:
    """FAULT B1: a takeover swept the offsets committed on a queue that is there."""

    listener = story.listener
    groups, shard = listener.hold(GROUPS)
    listener.fold(groups, shard, claim(2), commit(story.new.queue_id))
    groups._serve(shard, 0)

    async def settle() -> None:
        await listener.hear(heard)

    remote_cleanup = RemoteQueueCleanup(SHARDS, listener.all, listener.cache, settle)
    listener.cache.gone = remote_cleanup.queue_gone
    heard = before = len(story.topic.records)
    await story.taken_over(Member(story.topic, 3))
    for heard in range(before, len(story.topic.records) + 1):
        await listener.hear(heard)
        assert present(listener.cache.find(NAME)).queue_id == story.new.queue_id
        await remote_cleanup.round()
        await listener.tasks.run()
    assert shard.state.committed(GROUP, (story.new.queue_id, 0)) is not None
    assert heard == len(story.topic.records)


async def test_a_takeover_says_nothing_that_the_topic_says_already(story: Story) -> None:
    said = len(story.topic.records)
    _, shard = await story.taken_over(Member(story.topic, 3))
    assert len(story.topic.records) == said
    assert not list(shard.state.scan(b"a", b"b"))  # nor will the next one


@pytest.mark.parametrize("gone", [False, True])
async def test_announcements_left_out_by_an_earlier_owner_are_made(
    gone: bool, story: Story
) -> None:
    story.first.link.deaf = True  # and it dies
    story.log.append(delete(story.new) if gone else create(name="other"))
    story.log[-1].writer = 1
    await story.taken_over(Member(story.topic, 3))
    await story.listener.hear()
    assert (story.listener.cache.find(NAME) is None) == gone
    fresh = CatalogueCache(DictKv(), SHARDS, lambda index: None)
    fresh.apply(story.topic.compacted())
    assert (fresh.find(NAME) is None) == gone


async def test_all_workers_hear_that_a_queue_has_expired() -> None:
    topic, asked = Topic(), create(**{IDLE_MS: "60000"})
    owner, listener = Member(topic, 1), Member(topic, 2)
    holder, shard = owner.hold(HOME)
    owner.fold(holder, shard, claim(1))
    holder._serve(shard, 0)
    await owner.tasks.run()
    owner.fold(holder, shard, asked)
    await listener.hear()
    assert listener.cache.find(NAME) is not None
    owner.fold(holder, shard, ExpireQueue(asked.queue_id, 0, 60_000).envelope())
    await owner.tasks.run()
    await listener.hear()
    assert listener.cache.find(NAME) is None


async def test_a_late_tombstone_leaves_the_queue_that_has_the_name_now(story: Story) -> None:
    known = story.listener.cache.find(NAME)
    late = Tombstone(2, story.old.queue_id)
    story.first.link.publish_queue(b"q" + NAME.encode(), None, None, late.header())
    swept: list[QueueId] = []
    story.listener.cache.gone = swept.append
    await story.listener.hear()
    assert story.listener.cache.find(NAME) == known
    assert not swept
    await story.first.hear()  # its owner hears it too, and says what is
    fresh = CatalogueCache(DictKv(), SHARDS, lambda index: None)
    fresh.apply(story.topic.compacted())
    assert fresh.find(NAME) == known


async def test_a_late_tombstone_that_no_owner_heard_is_answered_by_the_next(story: Story) -> None:
    known = story.listener.cache.find(NAME)
    later = Member(story.topic, 3)
    await later.hear()
    late = Tombstone(2, story.old.queue_id)
    story.first.link.publish_queue(b"q" + NAME.encode(), None, None, late.header())
    await later.hear()
    await story.taken_over(later)
    fresh = CatalogueCache(DictKv(), SHARDS, lambda index: None)
    fresh.apply(story.topic.compacted())
    assert fresh.find(NAME) == known


async def test_a_tombstone_of_an_earlier_release_ends_no_queue(story: Story) -> None:
    swept: list[QueueId] = []
    story.listener.cache.gone = swept.append
    story.first.link.publish_queue(b"q" + NAME.encode(), None)
    await story.listener.hear()
    assert story.listener.cache.find(NAME) is None  # until its owner has said better
    assert not swept
    await story.first.hear()
    await story.listener.hear()
    assert story.listener.cache.find(NAME) is not None


async def test_a_tombstone_alone_ends_every_queue_before_it(story: Story) -> None:
    """As compaction leaves it to who was away."""

    away = Member(story.topic, 4)
    await away.hear(1)
    assert present(away.cache.find(NAME)).queue_id == story.old.queue_id
    swept: list[QueueId] = []
    away.cache.gone = swept.append
    gone = Tombstone(9, story.new.queue_id)
    story.first.link.publish_queue(b"q" + NAME.encode(), None, None, gone.header())
    away.cache.apply(story.topic.compacted())
    assert away.cache.find(NAME) is None
    assert swept == [story.old.queue_id]


async def test_after_a_rebuild_a_deletion_that_nobody_announced_is(story: Story) -> None:
    """FAULT B8: the queue was listed for ever, and could neither be made nor deleted."""

    heir = Member(story.topic, 3)
    await heir.hear()
    holder, shard = heir.hold(HOME)
    heir.fold(holder, shard, *story.log, delete(story.new), create(name="unheard"))
    shard.kv.write(dict.fromkeys(key for key, _ in shard.kv.scan(b"a", b"b")))
    shard.kv.write({COMPARE_KEY: b""})
    holder._serve(shard, 99)
    await heir.tasks.run()
    await story.listener.hear()
    assert story.listener.cache.find(NAME) is None
    assert story.listener.cache.find("unheard") is not None


async def test_late_owner_ends_nothing_that_came_after_it() -> None:
    story = Story()
    await story.served()  # by the first, which does not hear what follows in the log
    heir = Member(story.topic, 3)
    holder, shard = await story.taken_over(heir)
    again = create()
    heir.fold(holder, shard, delete(story.new), again)
    await heir.tasks.run()
    swept: list[QueueId] = []
    story.first.cache.gone = story.listener.cache.gone = swept.append
    for _ in range(4):
        await story.first.hear()
        await heir.hear()
        await story.listener.hear()
    assert present(story.listener.cache.find(NAME)).queue_id == again.queue_id
    assert set(swept) == {story.new.queue_id}
    assert len(story.topic.records) < 12  # they do not go on contradicting each other


async def test_commands_behind_anothers_claim_are_the_others_to_announce(story: Story) -> None:
    holder, shard = story.first.holders[HOME], story.first.serving(HOME)
    said = len(story.topic.records)
    story.first.fold(holder, shard, claim(9), create(name="other"))
    await story.first.tasks.run()
    assert not shard.serving
    assert len(story.topic.records) == said


async def test_owner_that_lost_a_shard_while_claiming_announces_nothing() -> None:
    """Seed 267 of `tests/simulation/workers/test_workers.py`."""

    topic = Topic()
    member = Member(topic, 1)
    holder, shard = member.hold(HOME)
    member.fold(holder, shard, claim(1))
    holder._serve(shard, 0)
    asked = create()
    asked.time_ms = 10**12  # a moment ago
    member.fold(holder, shard, claim(9), asked)
    await member.tasks.run()
    assert not topic.records


async def test_unannounced_note_does_not_hold_once_another_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 89 of `tests/simulation/workers/test_workers.py`: a deleted queue was there for ever."""
    monkeypatch.setattr(announcer, "_LOST_S", -1.0)
    name = next(f"q{i}" for i in range(99) if shard_of(f"q{i}", SHARDS) == HOME)

    story = Story()
    await story.served()
    holder, shard = story.first.holders[HOME], story.first.serving(HOME)
    story.first.link.deaf = True
    made = create(name=name)
    story.first.fold(holder, shard, made)
    await story.first.tasks.run()
    assert [queue.name for queue in story.first.cache.all()] == sorted([NAME, name])
    story.first.fold(holder, shard, claim(9), delete(made))
    began_again = CatalogueCache(DictKv(story.first.cache.kv.rows), SHARDS, lambda index: None)
    story.first.command_router.announcer.say_lost()
    for cache in (story.first.cache, began_again):
        assert [queue.name for queue in cache.all()] == [NAME]
        assert cache.find_id(made.queue_id) is None


async def test_commands_folded_before_serving_are_answered_if_recent() -> None:
    topic = Topic()
    asker, owner = Member(topic, 1), Member(topic, 2, lambda: 10_000_000)
    old, recent = create(name="a"), create(name="b")
    tickets = [asker.command_router.submit(NAME, envelope) for envelope in (old, recent)]
    old.time_ms, recent.time_ms = 1, 9_999_000
    holder, shard = owner.hold(HOME)
    owner.fold(holder, shard, old, recent, claim(2))
    assert not topic.records
    holder._serve(shard, 2)
    await owner.tasks.run()
    for counter, values in asker.cache.outcomes(topic.records, 1):
        asker.command_router.published(counter, values)
    assert [ticket.done for ticket in tickets] == [False, True]


async def test_commands_are_answered_however_the_clocks_differ() -> None:
    """FAULT: an owner whose clock was more than ten minutes off never answered."""

    topic = Topic()
    asker, owner = Member(topic, 1), Member(topic, 2, lambda: 10**12 + 3_600_000)
    holder, shard = owner.hold(HOME)
    owner.fold(holder, shard, claim(2))
    holder._serve(shard, 0)
    await owner.tasks.run()
    asked = create()
    ticket = asker.command_router.submit(NAME, asked)
    owner.fold(holder, shard, asked)
    for counter, values in asker.cache.outcomes(topic.records, 1):
        asker.command_router.published(counter, values)
    assert ticket.done
    await owner.tasks.run()


async def test_a_creation_that_was_overtaken_is_answered_all_the_same() -> None:
    """FAULT S5: who waited for partitions that grew before they had landed waited in vain."""

    topic = Topic()
    member = Member(topic, 1)
    holder, shard = member.hold(HOME)
    member.fold(holder, shard, claim(1))
    holder._serve(shard, 0)
    await member.tasks.run()
    wide = create(3)
    wide.writer, wide.counter = 1, member.link.next_counter()
    ticket = member.command_router._wait_for(Ticket([wide]))
    grow = command(Kind.GROW, wide.queue_id, number=4)
    member.fold(holder, shard, wide, grow)
    member.fold(holder, shard, command(Kind.QUEUE_READY, wide.queue_id, number=1))
    assert not ticket.done  # more is on its way
    member.fold(holder, shard, command(Kind.QUEUE_READY, wide.queue_id, number=2))
    assert ticket.done
    assert not member.command_router._awaiting_ready.get(HOME)
    for task in member.tasks.waiting:
        task.close()


def test_a_catalogue_older_than_tombstones_are_kept_is_read_again() -> None:
    day = 24 * 3600 * 1000
    cache = CatalogueCache(DictKv(), SHARDS, lambda index: None)
    assert not cache.has_missed(day, day)  # it holds nothing
    story_queue = MemberQueue()
    cache.apply(story_queue.records)
    assert cache.has_missed(5 * day, day)  # a release that did not say
    cache.is_current(5 * day)
    assert not cache.has_missed(5 * day + 1000, day)
    assert cache.has_missed(6 * day, day)
    assert cache.has_missed(4 * day, day)  # a clock that was wrong
    cache.begin_again()
    assert not list(cache.all())
    assert cache.next_offset == 0


class MemberQueue:
    """One announcement."""

    def __init__(self) -> None:
        topic = Topic()
        member = Member(topic, 1)
        _, shard = member.hold(HOME)
        shard.apply(create())
        queue = shard.state.queue(NAME)
        member.link.publish_queue(b"q" + NAME.encode(), announcement(queue))
        self.records = topic.records
