"""The rights of who has set a group's dead-letter queue, when that is made."""

from kproxy.metadata.group_settings import GroupSettings
from kproxy.security.acls import Op
from kproxy.shares.dead_letter_targets import Obstacle, Targets
from tests.handlers.secured import ALICE, Secured, rule


def targets(here: Secured, by: str | None) -> Targets:
    worker = here.worker
    setting = GroupSettings(dead_letter_queue="dlq.a", dead_letters_set_by=by)
    return Targets(
        lambda _: setting, worker.catalogue, worker.config, worker.clock.monotonic,
        worker.signatures,
    )  # fmt: skip


async def test_dead_letter_queue_is_not_made_for_who_may_not_create_it_any_more() -> None:
    """FAULT: one that was deleted came again, though its group's setter had lost CREATE."""
    here = Secured(errors_deadletterqueue_auto_create_topics_enable=True)
    found = targets(here, f"{ALICE.host} {ALICE.principal}")
    await here.add(rule(Op.WRITE, "dlq.a"))
    assert found.find("g") is Obstacle.FORBIDDEN
    assert not here.worker.catalogue.exists("dlq.a")
    await here.add(rule(Op.CREATE, "dlq.a"))
    assert found.find("g") is Obstacle.ABSENT, "look again soon"
    assert here.worker.catalogue.exists("dlq.a")


async def test_dead_letter_queue_that_an_older_kproxy_has_set_is_made() -> None:
    here = Secured(errors_deadletterqueue_auto_create_topics_enable=True)
    targets(here, None).find("g")
    assert here.worker.catalogue.exists("dlq.a")
