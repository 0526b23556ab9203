"""The rights for settings that name other queues:

routes, dead letters; and what is told of them.
"""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from kproxy.log.base import Ticket
from kproxy.metadata.catalogue import QueueIds
from kproxy.metadata.group_settings import DEAD_LETTERS
from kproxy.metadata.setting import SET_BY
from kproxy.protocol.api_keys import ApiKey
from kproxy.routes.rights import why_forbidden
from kproxy.security.acls import Effect, Op, Pattern, Resource
from kproxy.security.peer import Peer
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.commands.shares import EARLIEST, SetShares, ShareAction, ShareChange
from kproxy.virtual.types import ShardId
from tests.bodies import change, replacement
from tests.commands import command
from tests.handlers.secured import ALICE, NOT_ALLOWED, ROOT, Secured, rule, settings
from tests.present import present


async def test_a_route_reads_and_writes_what_its_definer_may() -> None:
    here = Secured()
    for name in ("in", "src"):
        await here.produce(name, ROOT)
    await here.add(rule(Op.ALTER_CONFIGS, "in"))
    prefixed = {"resource_pattern_type": Pattern.PREFIXED}

    async def routed(template: str) -> int:
        others = {"kproxy_route_unroutable": "device-none"}
        return await settings(here, 2, "in", kproxy_route_to=template, **others)

    assert await routed("device-{key}") == NOT_ALLOWED
    await here.add(rule(Op.WRITE, "device-", **prefixed))
    assert await routed("device-{key}") == NOT_ALLOWED
    await here.add(rule(Op.CREATE, "dev", **prefixed))
    assert await routed("device-{key}") == 0
    assert await settings(here, 2, "in", retention_ms="5") == 0
    assert await routed("else-{key}") == NOT_ALLOWED
    await here.add(rule(Op.WRITE, "device-secret", permission_type=Effect.DENY))
    assert await routed("device-s{key}") == NOT_ALLOWED
    assert await settings(here, 2, "in", kproxy_route_unroutable="elsewhere") == NOT_ALLOWED
    await here.add(rule(Op.ALTER_CONFIGS, "src"))
    assert await settings(here, 2, "src", kproxy_route_from="in") == NOT_ALLOWED


async def test_change_of_a_part_of_a_route_needs_its_definers_rights() -> None:
    """Else who may set a queue's settings would have all of the queue that it takes a part of."""
    here = Secured()
    part, whole = {"kproxy_route_from": "src", "kproxy_route_filter": "key:x"}, ""
    entrance = {"kproxy_route_to": "d-{key}", "kproxy_route_unroutable": "lost"}
    for name in ("src", "red", "in"):
        await here.produce(name, ROOT)
    assert await settings(here, 2, "red", ROOT, **part) == 0
    assert await settings(here, 2, "in", ROOT, **entrance) == 0
    await here.add(rule(Op.ALTER_CONFIGS, "red"), rule(Op.ALTER_CONFIGS, "in"))

    async def replaced(name: str, **values: str) -> int:
        asked = replacement(2, name, values)
        return int((await here.call(ApiKey.ALTER_CONFIGS, 1, asked)).responses[0].error_code)

    for filter_ in (whole, None, "key:x", "key:y"):
        assert await settings(here, 2, "red", kproxy_route_filter=filter_) == NOT_ALLOWED
    assert await settings(here, 2, "red", kproxy_route_from_start="true") == NOT_ALLOWED
    assert await replaced("red", kproxy_route_from="src") == NOT_ALLOWED
    more = {"kproxy_route_configs": "retention.ms:1", "kproxy_route_queues_max": "7"}
    for name, value in more.items():
        assert await settings(here, 2, "in", **{name: value}) == NOT_ALLOWED
    assert await settings(here, 2, "red", retention_ms="5") == 0
    assert await settings(here, 2, "in", kproxy_route_keep="false") == 0
    await here.add(rule(Op.READ, "src"))
    assert await settings(here, 2, "red", kproxy_route_filter=whole) == 0
    assert await settings(here, 2, "red", kproxy_route_from=None) == 0


async def stands(here: Secured, kind: int, name: str, key: str) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (result,) = (await here.call(ApiKey.DESCRIBE_CONFIGS, 4, values)).results
    return json.loads(result.configs[0].value)


async def test_how_a_queue_stands_is_told_who_may_know_of_it() -> None:
    here = Secured()
    route = {"kproxy_route_from": "src"}
    for name in ("src", "red", "q"):
        await here.produce(name, ROOT)
    assert await settings(here, 2, "red", ROOT, **route) == 0
    queue = present(here.worker.catalogue.find("q"))
    change = ShareChange((queue.queue_id, 0), ShareAction.INITIALISE, 1, EARLIEST)
    here.worker.any_shard().append([SetShares("g", [change], 1).envelope()])
    group = {"resource_type": Resource.GROUP}
    await here.add(
        rule(Op.DESCRIBE_CONFIGS, "src"), rule(Op.DESCRIBE_CONFIGS, "q"),
        rule(Op.DESCRIBE_CONFIGS, "g", **group),
    )  # fmt: skip
    nothing = {"dead_letters_waiting": 0, "partitions": {}}
    assert await stands(here, 32, "g", "kproxy.state.q") == nothing
    assert await stands(here, 2, "src", "kproxy.state.routes") == []
    assert await stands(here, 2, "q", "kproxy.state.delays") == []
    await here.add(rule(Op.DESCRIBE, "q"), rule(Op.DESCRIBE, "src"))
    assert set((await stands(here, 32, "g", "kproxy.state.q"))["partitions"]) == {"0"}
    assert await stands(here, 2, "src", "kproxy.state.routes") == []
    await here.add(rule(Op.DESCRIBE, "red"))
    (told,) = await stands(here, 2, "src", "kproxy.state.routes")
    assert told["queue"] == "red"


async def test_a_refusal_names_no_queue_that_is_hidden() -> None:
    here = Secured()
    for name in ("src", "red", "mine"):
        await here.produce(name, ROOT)
    assert await settings(here, 2, "red", ROOT, kproxy_route_from="src") == 0
    await here.add(rule(Op.ALTER_CONFIGS, "mine"), rule(Op.READ, "red"))
    asked = change(2, "mine", ("kproxy.route.from", 0, "red"))

    async def text() -> str:
        told = await here.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, asked)
        return str(told.responses[0].error_message)

    assert (await text()).endswith("name the queue where they come from")
    await here.add(rule(Op.DESCRIBE, "src"))
    assert (await text()).endswith("name src, where they come from")


async def test_settings_of_dead_letters_need_the_right_to_write_to_their_queue() -> None:
    here = Secured(errors_deadletterqueue_auto_create_topics_enable=True)
    group = {"resource_type": Resource.GROUP, "resource_name": "g"}
    await here.add(rule(Op.ALTER_CONFIGS, "g", **group))
    named = {"errors_deadletterqueue_topic_name": "dlq.q"}
    copies = {"errors_deadletterqueue_copy_record_enable": "true"}
    assert await settings(here, 32, "g", **named) == NOT_ALLOWED
    assert await settings(here, 32, "g", **copies) == 0  # nothing goes anywhere
    await here.add(rule(Op.WRITE, "dlq.q"))
    assert await settings(here, 32, "g", **named) == NOT_ALLOWED  # it would be made
    await here.add(rule(Op.CREATE, "dlq.q"))
    assert await settings(here, 32, "g", **named) == 0
    await here.drop(resource_name_filter="dlq.q")
    assert await settings(here, 32, "g", **copies) == NOT_ALLOWED
    assert await settings(here, 32, "g", **named, **copies) == NOT_ALLOWED
    assert await settings(here, 32, "g", share_delivery_count_limit="3") == 0
    await here.produce("dlq.q", ROOT)
    await here.add(rule(Op.WRITE, "dlq.q"))
    assert await settings(here, 32, "g", **copies) == 0


@pytest.mark.parametrize("named", [True, False])
async def test_dead_letter_queue_made_elsewhere_needs_no_right_to_make_it(
    monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """FAULT: a worker that had not heard of it yet refused: it asked for the right to make it."""
    here = Secured(errors_deadletterqueue_auto_create_topics_enable=True)
    group = {"resource_type": Resource.GROUP, "resource_name": "g"}
    await here.add(rule(Op.ALTER_CONFIGS, "g", **group), rule(Op.WRITE, "dlq.q"))
    aim = {"errors_deadletterqueue_topic_name": "dlq.q"}
    if not named:
        assert await settings(here, 32, "g", ROOT, **aim) == 0
    shard: Any = here.worker.routes.serving(0)
    monkeypatch.setattr(here.worker.routes, "wait_for_catalogue", heard := Heard(shard))
    copies = {"errors_deadletterqueue_copy_record_enable": "true"}
    assert await settings(here, 32, "g", **(aim if named else copies)) == 0
    assert heard.made == ["dlq.q"]


class Heard:
    """A barrier behind which each queue is there that is waited for."""

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self.made: list[str] = []

    async def __call__(self, names: Iterable[str | None]) -> None:
        for name in names:
            self.made.append(str(name))
            values = {"name": name, "partitions": 1, "configs": {}}
            made = command(Kind.CREATE, QueueIds(1).new(ShardId(0)), values=values)
            self._shard.apply(made)


async def test_signer_of_copied_records_is_kept_and_asked_at_each_use() -> None:
    """FAULT: ALTER_CONFIGS on a group made its holder a reader of all that the group reads."""
    here = Secured(errors_deadletterqueue_auto_create_topics_enable=False)
    for name in ("src", "dlq.a"):
        await here.produce(name, ROOT)
    of_group = {"resource_type": Resource.GROUP}
    await here.add(
        rule(Op.ALTER_CONFIGS, "g", **of_group), rule(Op.WRITE, "dlq.a"),
        rule(Op.DESCRIBE_CONFIGS, "g", **of_group),
    )  # fmt: skip
    letters = {
        "errors_deadletterqueue_topic_name": "dlq.a",
        "errors_deadletterqueue_copy_record_enable": "true",
    }
    copies = here.worker.dead_letters._shared.copies
    assert await settings(here, 32, "g", **letters) == 0
    assert not copies("g", "src")
    await here.add(rule(Op.READ, "src"))
    assert copies("g", "src")
    assert await settings(here, 32, "g", share_record_lock_duration_ms="20000") == 0
    await here.drop(resource_type_filter=Resource.TOPIC, resource_name_filter="src")
    assert not copies("g", "src")
    assert await settings(here, 32, "g", ROOT, **letters) == 0
    assert copies("g", "src")
    assert await settings(here, 32, "g", share_record_lock_duration_ms="21000") == 0
    assert copies("g", "src"), "another setting changes nothing of it"
    resource = {"resource_type": 32, "resource_name": "g", "configuration_keys": None}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (told,) = (await here.call(ApiKey.DESCRIBE_CONFIGS, 4, values)).results
    assert not any(config.name == SET_BY for config in told.configs)


async def test_two_who_set_dead_letters_at_once_lend_each_other_no_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: Bob's word for his queue was kept beside Alice's, to which he may not write."""
    here, bob = Secured(), Peer("User:bob", "10.0.0.2")
    for name in ("src", "dlq.bobs", "dlq.alices"):
        await here.produce(name, ROOT)
    mine = {"principal": bob.principal}
    of_group = {"resource_type": Resource.GROUP}
    await here.add(
        rule(Op.ALTER_CONFIGS, "g", **of_group), rule(Op.WRITE, "dlq.alices"),
        rule(Op.ALTER_CONFIGS, "g", **of_group, **mine), rule(Op.WRITE, "dlq.bobs", **mine),
        rule(Op.READ, "src", **mine),
    )  # fmt: skip
    goes = "errors_deadletterqueue_topic_name"
    copied = {"errors_deadletterqueue_copy_record_enable": "true"}
    copies = here.worker.dead_letters._shared.copies
    assert await settings(here, 32, "g", bob, **{goes: "dlq.bobs"}) == 0
    submit = here.worker.routes.submit
    by_alice = {DEAD_LETTERS: "dlq.alices"} | here.worker.signatures.sign(ALICE)

    def comes_first(name: str, change: Envelope) -> Ticket:
        submit("g", ConfigureGroup("g", by_alice, []).envelope())
        return submit(name, change)

    monkeypatch.setattr(here.worker.routes, "submit", comes_first)
    assert await settings(here, 32, "g", bob, **copied) == 0
    monkeypatch.undo()
    found = here.worker.group_settings("g")
    assert (found.dead_letter_queue, found.dead_letter_copies_record) == ("dlq.alices", True)
    assert not copies("g", "src")
    assert await settings(here, 32, "g", bob, **{goes: "dlq.bobs"}, **copied) == 0
    assert copies("g", "src")


async def test_copies_that_somebody_has_asked_for_are_not_made_with_anothers_rights() -> None:
    """FAULT: Alice asked for copies before there was a queue; who named one had them made."""
    here = Secured()
    for name in ("src", "dlq.a"):
        await here.produce(name, ROOT)
    await here.add(rule(Op.ALTER_CONFIGS, "g", resource_type=Resource.GROUP))
    copied = {"errors_deadletterqueue_copy_record_enable": "true"}
    assert await settings(here, 32, "g", **copied) == 0
    assert await settings(here, 32, "g", ROOT, errors_deadletterqueue_topic_name="dlq.a") == 0
    copies = here.worker.dead_letters._shared.copies
    assert not copies("g", "src")
    assert await settings(here, 32, "g", ROOT, **copied) == 0
    assert copies("g", "src")


async def test_a_route_ends_with_the_rights_of_who_has_set_it() -> None:
    """FAULT: it outlived them: READ was asked once, when it was made."""
    here = Secured()
    for name in ("src", "red"):
        await here.produce(name, ROOT)
    await here.add(rule(Op.ALTER_CONFIGS, "red"), rule(Op.READ, "src"))

    def why() -> str | None:
        queue = present(here.worker.catalogue.find("red"))
        return why_forbidden(here.worker.signatures, queue.configs, "red")

    assert await settings(here, 2, "red", kproxy_route_from="src") == 0
    assert why() is None
    await here.drop(resource_type_filter=Resource.TOPIC, resource_name_filter="src")
    assert "User:alice" in str(why())
    assert await settings(here, 2, "red", kproxy_set_by=None) == 0
    assert await settings(here, 2, "red", retention_ms="5") == 0
    assert "User:alice" in str(why()), "no client drops it"
    assert await settings(here, 2, "red", kproxy_set_by="10.0.0.9 User:root") != 0
    assert await settings(here, 2, "red", ROOT, kproxy_route_filter="key:x") == 0
    assert why() is None


async def test_a_redrive_carries_who_has_ordered_it() -> None:
    """It reads the letters and writes where they go, and needs the right to do so all the while."""
    here = Secured()
    for name in ("dlq.a", "jobs"):
        await here.produce(name, ROOT)
    await here.add(rule(Op.ALTER_CONFIGS, "dlq.a"))

    def why() -> str | None:
        queue = present(here.worker.catalogue.find("dlq.a"))
        return why_forbidden(here.worker.signatures, queue.configs, "dlq.a")

    async def redriven(to: str, job: str) -> int:
        return await settings(here, 2, "dlq.a", kproxy_redrive_to=to, kproxy_redrive_job=job)

    assert await redriven("jobs", "1") == NOT_ALLOWED
    await here.add(rule(Op.WRITE, "jobs"))
    assert await redriven("jobs", "1") == NOT_ALLOWED, "it may not read them"
    await here.add(rule(Op.READ, "dlq.a"))
    assert await redriven("jobs", "1") == NOT_ALLOWED, "it would make the queue where it is gone"
    await here.add(rule(Op.CREATE, "jobs"))
    assert await redriven("*", "1") == NOT_ALLOWED, "that is any queue"
    assert await redriven("job*", "1") == NOT_ALLOWED
    assert await redriven("jobs", "1") == 0
    assert why() is None
    await here.drop(resource_type_filter=Resource.TOPIC, resource_name_filter="jobs")
    assert "User:alice" in str(why())
    assert await settings(here, 2, "dlq.a", ROOT, kproxy_redrive_rate="5/s") == 0
    assert "User:alice" in str(why()), "a rate makes it nobody else's"
    assert await settings(here, 2, "dlq.a", kproxy_redrive_paused="true") == 0
    assert await settings(here, 2, "dlq.a", kproxy_redrive_job="2") == NOT_ALLOWED
    assert await settings(here, 2, "dlq.a", ROOT, kproxy_redrive_job="2") == 0
    assert why() is None
