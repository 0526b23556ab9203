"""Ways of people through the console, in a real browser on a served kproxy."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kproxy.console import sessions
from kproxy.tools.administration import create
from kproxy.tools.client import Client
from kproxy.tools.client_settings import ClientSettings
from tests.browser.chromium import Chromium, colours
from tests.clients.transactions.calls import transactional
from tests.console.serving import WAIT_S, Browser, console
from tests.console.test_dead import ENABLE, bury, records_of
from tests.console.test_pages import fill, make
from tests.harness import Served, eventually
from tests.securing import PASSWORD, Site

QUEUES = 100_000


@pytest.fixture(scope="module")
def admin(own: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": own.address, "log_level": 0})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    with made.running("--authorizer", "acl", "--super-users", "User:alice;User:ANONYMOUS"):
        for user in ("alice", "bob"):
            made.add_user(user)
        client = AdminClient(made.librdkafka("INSIDE") | {"log_level": 0})
        client.create_topics([NewTopic("secret-queue", 1)])["secret-queue"].result(WAIT_S)
        yield made


@pytest.fixture
def secured(site: Site, window: Chromium) -> Iterator[Chromium]:
    """Return the window at the login of a console behind TLS."""
    settings = ClientSettings(tls=True, ca=str(site.authority.ca), mechanism="SCRAM-SHA-512")
    with console(
        ("localhost", site.port["OUTSIDE"]), settings,
        certificate=site.authority.server, context=site.authority.context(),
    ) as browser:  # fmt: skip
        window.open(f"https://localhost:{browser.port}/queues")
        yield window


def log_in(window: Chromium, user: str, password: str = PASSWORD) -> None:
    window.write("User", user)
    window.write("Password", password)
    window.click("Log in")


def open_(window: Chromium, shown: Browser, path: str = "/") -> None:
    window.open(f"http://localhost:{shown.port}{path}")


def test_a_user_logs_in_and_comes_to_the_page_that_was_asked_for(
    secured: Chromium,
) -> None:
    secured.sees("Mechanism")
    log_in(secured, "alice", "wrong")
    secured.sees("not logged in as alice")
    assert "secret-queue" not in secured.text
    log_in(secured, "alice")
    secured.sees("secret-queue")
    (cookie,) = secured.cookies()
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    assert secured.run("return document.cookie") == ""


def test_a_user_without_permission_sees_no_name(secured: Chromium) -> None:
    log_in(secured, "bob")
    secured.sees("You see no such queue")
    assert "secret" not in secured.run("return document.documentElement.outerHTML")


def test_a_session_ends_and_a_login_leads_back(
    secured: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(secured, "alice")
    secured.sees("secret-queue")
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "_IDLE_S", 0.0)
        secured.click("Groups")
        secured.sees("Password")
    log_in(secured, "alice")
    secured.sees("Groups by name")
    assert secured.url.endswith("/groups")
    secured.click("Log out")
    secured.sees("Password")


def test_one_of_very_many_queues_is_found(
    window: Chromium, shown: Browser, own: Served, keep: Callable[[str], None]
) -> None:
    with Client((own.host, own.port)) as client:
        names = [f"meter-{number}" for number in range(QUEUES)]
        assert not [one for one in create(client, names, 1, {}, dry=False) if one.code]
    fill(own, "meter-50", *[b'{"reading": %d}' % n for n in range(40)])
    open_(window, shown, "/queues")
    window.write("Begin with", "meter-5012")
    window.click("Search")
    window.sees("meter-5012 ")
    window.sees("meter-50129 ")
    assert "meter-5013" not in window.text
    window.write("Begin with", "meter-50")
    window.click("Search")
    window.click("next ›")
    window.sees("meter-50049")
    open_(window, shown, "/queues?prefix=meter-50")
    keep("queues")


def test_records_are_browsed_written_and_followed(
    window: Chromium, shown: Browser, own: Served, admin: AdminClient, keep: Callable[[str], None]
) -> None:
    make(admin, "orders")
    fill(own, "orders", *[b'{"order": %d, "of": "anna"}' % n for n in range(120)])
    open_(window, shown, "/queues?prefix=orders")
    window.click("orders")
    window.click("Records")
    window.sees('{"order": 119, "of": "anna"}')
    keep("records")
    window.click("‹ before")
    window.sees('"order": 20,')
    window.click("20")
    window.sees('"order": 20,')
    window.click("hex")
    window.sees("7b 22 6f 72")

    window.click("Write")
    window.write("Key", "bertha")
    window.write("Value", "<b>bold</b>\nnext")
    window.write("Headers", "source: a person")
    window.press("main button")
    window.sees("The record was written.")
    window.sees("<b>bold</b>")
    window.sees("source a person")

    window.click("Records")
    window.click("5 s")
    fill(own, "orders", b"while somebody looks")
    window.sees("while somebody looks")
    assert "refresh=5" in window.url


def test_the_lag_of_a_group_is_a_chart(
    window: Chromium, shown: Browser, own: Served, admin: AdminClient, keep: Callable[[str], None]
) -> None:
    make(admin, "jobs")
    for number in range(8):  # it falls behind
        fill(own, "jobs", *[b"job"] * 50)
        offsets = [ConsumerGroupTopicPartitions("crew", [TopicPartition("jobs", 0, number * 20)])]
        for future in admin.alter_consumer_group_offsets(offsets).values():
            future.result(WAIT_S)
    eventually(lambda: "polyline" in shown.get("/group", id="crew").tags, WAIT_S)
    open_(window, shown, "/group?id=crew")
    line = window.run("return getComputedStyle(document.querySelector('.line-1')).stroke")
    wanted = bytes(int(one) for one in line.removeprefix("rgb(").rstrip(")").split(","))

    def drawn() -> bool:
        open_(window, shown, "/group?id=crew")
        return wanted in colours(window.picture(".chart"))

    eventually(drawn, WAIT_S)  # a line is of two points at least
    open_(window, shown, "/workers")
    keep("workers")


def test_letters_are_looked_at_and_redriven_to_the_end(
    window: Chromium, shown: Browser, own: Served, admin: AdminClient, keep: Callable[[str], None]
) -> None:
    make(admin, "mails", "dlq.mails")
    with suppress(KafkaException):
        make(admin, "jobs")
    make(admin, "dlq.jobs", **ENABLE)
    before = records_of(shown, "jobs")
    bury(own, "dlq.jobs", "jobs", 30, **{"__dlq.errors.message": "Offset delivery count exceeded"})
    bury(own, "dlq.jobs", "jobs", 1, **{
        "kproxy.dlq.cause": "rejected", "__dlq.errors.message": "cannot read <job>",
    })  # fmt: skip
    open_(window, shown)
    window.click("Dead letters")
    window.click("dlq.jobs")
    window.sees("delivery limit 30")
    window.sees("rejected 1")
    keep("dead")
    window.click("rejected")
    window.sees("cannot read <job>")  # the poison
    window.click("Show all")
    window.press('a[aria-label="Redrive these: delivery limit"]')
    window.write("At most", "10/s")
    window.click("Show what would go")
    window.sees("30 letters would go of 31")
    keep("preview")
    window.click("Begin")
    window.sees("The redrive has begun")
    keep("redrive")
    window.sees(": over")
    assert records_of(shown, "jobs") == before + 30
    window.click("Jobs")
    window.sees("dlq.jobs where they came from over")


def test_a_waiting_record_is_cancelled(
    window: Chromium, shown: Browser, own: Served, admin: AdminClient
) -> None:
    make(admin, "reminders", kproxy_delay_replace="key", kproxy_delay_ms="86400000")
    fill(own, "reminders", b"later")
    open_(window, shown)
    window.click("Waiting")
    window.write("Names that begin with", "remind")  # among very many
    window.click("Search")
    window.click("reminders")
    window.click("Cancel")
    window.sees("The record was cancelled")
    window.sees("Nothing waits")


def test_a_queue_is_deleted_once_its_name_is_typed(
    window: Chromium, shown: Browser, admin: AdminClient
) -> None:
    make(admin, "old-queue")
    open_(window, shown, "/queues/old-queue")
    window.click("Change or delete this queue")
    window.write("Type old-queue", "old")
    window.click("Delete with all records")
    window.sees("nothing was changed")
    open_(window, shown, "/queues/old-queue")
    window.click("Change or delete this queue")
    window.write("Type old-queue", "old-queue")
    window.click("Delete with all records")
    window.sees("It was deleted.")
    open_(window, shown, "/queues?prefix=old-queue")
    window.sees("You see no such queue")


def test_an_open_transaction_is_aborted(
    window: Chromium, shown: Browser, own: Served, admin: AdminClient
) -> None:
    make(admin, "paid")
    producer = transactional(own.address, "cashier-1")
    producer.begin_transaction()
    producer.produce("paid", b"never")
    assert producer.flush(WAIT_S) == 0
    open_(window, shown, "/transactions")
    window.sees("cashier-1")
    window.click("Abort an open transaction, and fence its producer")
    window.write("Id", "cashier-1")
    window.write("Once more", "cashier-1")
    window.click("Abort")
    window.sees("The transaction was aborted.")
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)


def test_nothing_is_asked_for_elsewhere(window: Chromium, shown: Browser) -> None:
    open_(window, shown, "/workers")
    asked = window.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert asked
    assert all(one.startswith(f"http://localhost:{shown.port}/static/") for one in asked)
