"""Logins to a console whose kproxy asks who a client is, over TLS."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kproxy.tools.client_settings import MECHANISMS, ClientSettings
from tests.console.serving import WAIT_S, Browser, console
from tests.securing import PASSWORD, Site, altered


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    with made.running("--authorizer", "acl", "--super-users", "User:alice;User:ANONYMOUS"):
        for user in ("alice", "bob", "gone"):
            made.add_user(user)
        admin = AdminClient(made.librdkafka("INSIDE") | {"log_level": 0})
        admin.create_topics([NewTopic("secret-queue", 1)])["secret-queue"].result(WAIT_S)
        yield made


@pytest.fixture(scope="module")
def served_console(site: Site) -> Iterator[Browser]:
    settings = ClientSettings(tls=True, ca=str(site.authority.ca), mechanism="SCRAM-SHA-512")
    with console(
        ("localhost", site.port["OUTSIDE"]), settings,
        certificate=site.authority.server, context=site.authority.context(),
    ) as browser:  # fmt: skip
        yield browser


@pytest.fixture
def browser(served_console: Browser) -> Browser:
    return Browser(served_console.port, served_console.context)


def log_in(browser: Browser, user: str = "alice", password: str = PASSWORD, **more: str) -> int:
    form = {"mechanism": "SCRAM-SHA-512", "user": user, "password": password} | more
    return browser.post("/login", **form).status


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism_logs_in(browser: Browser, mechanism: str) -> None:
    assert "Log in" in browser.get("/queues").text
    assert log_in(browser, mechanism=mechanism) == 303
    page = browser.get("/queues")
    assert "secret-queue" in page.text
    assert "alice Log out" in page.text


def test_cookie_is_the_consoles_alone(browser: Browser) -> None:
    found = browser.post("/login", user="alice", password=PASSWORD, mechanism="PLAIN")
    (cookie,) = found.headers.get_all("set-cookie")
    assert cookie.startswith("__Host-kproxy-console=")
    for trait in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert trait in cookie
    assert PASSWORD not in str(found)


def test_a_user_sees_no_name_that_is_not_for_it(browser: Browser) -> None:
    assert log_in(browser, "bob") == 303
    assert "secret-queue" not in browser.get("/queues").body
    page = browser.get("/queues/secret-queue")
    unknown = browser.get("/queues/no-such-queue")
    assert page.status == unknown.status == 404
    assert page.body.replace("secret-queue", "no-such-queue") == unknown.body


def test_access_shows_users_rules_and_quotas_to_who_may_see_them(
    browser: Browser, site: Site
) -> None:
    admin = AdminClient(site.librdkafka("INSIDE") | {"log_level": 0})
    rule = AclBinding(ResourceType.TOPIC, "bob-<b>", ResourcePatternType.PREFIXED, "User:bob", "*",
                      AclOperation.READ, AclPermissionType.ALLOW)  # fmt: skip
    admin.create_acls([rule])[rule].result(WAIT_S)
    assert log_in(browser) == 303
    page = browser.get("/access")
    assert "User:bob allow read topic bob-<b>… *" in page.text
    assert "bob SCRAM-SHA-256 (4096 iterations), SCRAM-SHA-512 (4096" in page.text
    assert "None is shown" in browser.get("/access", contains="none-such").text
    assert log_in(browser, "bob") == 303
    page = browser.get("/access")
    assert page.status == 200
    assert "User:bob" not in page.text
    assert page.text.count("Not shown:") == 3


@pytest.mark.parametrize(
    ("form", "status", "text"),
    [
        ({"user": "alice", "password": "wrong"}, 401, "not logged in as alice"),
        ({"user": "nobody", "password": PASSWORD}, 401, "not logged in as nobody"),
        ({"user": "alice", "password": ""}, 400, "give a user and a password"),
        ({"user": "a" * 2000, "password": "x"}, 400, "give a user and a password"),
        ({"user": "alice", "password": PASSWORD, "mechanism": "GSSAPI"}, 400, "give a user"),
    ],
)
def test_a_failed_login_says_so(
    browser: Browser, form: dict[str, str], status: int, text: str
) -> None:
    page = browser.post("/login", **({"mechanism": "SCRAM-SHA-256"} | form))
    assert page.status == status
    assert text in page.text
    assert not browser.cookies
    assert PASSWORD not in page.body


def test_a_session_of_an_attacker_is_not_taken_over(browser: Browser) -> None:
    browser.cookies["__Host-kproxy-console"] = "fixed-by-somebody-else"
    assert log_in(browser) == 303
    assert browser.cookies["__Host-kproxy-console"] != "fixed-by-somebody-else"


def test_log_out_ends_the_session(browser: Browser) -> None:
    assert log_in(browser) == 303
    stolen = dict(browser.cookies)
    assert browser.post("/logout").status == 303
    browser.cookies = stolen
    assert "Log in" in browser.get("/queues").text


def test_login_leads_to_the_page_that_was_asked_for_and_nowhere_else(browser: Browser) -> None:
    form = browser.get("/queues", prefix="secret")
    (after,) = re.findall(r'name="next" value="([^"]*)"', form.body)
    found = browser.post("/login", user="alice", password=PASSWORD, mechanism="PLAIN", next=after)
    assert found.headers["location"] == "/queues?prefix=secret"
    for foreign in ("//evil.example", "https://evil.example", "/\\evil.example", "/\tx", ""):
        found = browser.post(
            "/login", user="alice", password=PASSWORD, mechanism="PLAIN", next=foreign
        )
        assert found.headers["location"] == "/"


def test_a_deleted_user_is_logged_out(browser: Browser, site: Site) -> None:
    assert log_in(browser, "gone") == 303
    assert browser.get("/queues").status == 200
    with site.wire("INSIDE") as wire:
        doomed = [{"name": "gone", "mechanism": number} for number in (1, 2)]
        assert altered(wire, deletions=doomed) == {"gone": 0}
    assert "Log in" in browser.get("/queues").text


def test_large_and_odd_forms_are_refused(browser: Browser) -> None:
    page = browser.post("/login", user="alice", password="x" * 300_000, mechanism="PLAIN")
    assert page.status == 400
    origin = {"Origin": f"https://localhost:{browser.port}"}
    assert browser.send("POST", "/login", "user=alice", origin).status == 400
    many = "&".join(f"a{number}=1" for number in range(1000))
    typed = origin | {"Content-Type": "application/x-www-form-urlencoded"}
    assert browser.send("POST", "/login", many, typed).status == 400
    assert browser.send("POST", "/login", "user=%ff", typed).status == 400


def test_user_and_password_are_in_no_file_of_the_console(tmp_path: Path) -> None:
    from kproxy.common.errors import CannotStart
    from kproxy.tools.client_settings import read_client_settings

    file = tmp_path / "console.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n")
    assert read_client_settings(file, credentials=False).mechanism == "PLAIN"
    file.write_text(file.read_text() + "sasl.username=anna\nsasl.password=secret\n")
    with pytest.raises(CannotStart, match="each logs in as himself"):
        read_client_settings(file, credentials=False)


def test_a_console_ends_at_once_whatever_browsers_keep_open(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULT: an idle browser did not answer the end of TLS, and five seconds were waited for it."""
    authority = site.authority
    with ExitStack() as stack:
        with console(
            ("localhost", site.port["OUTSIDE"]), certificate=authority.server,
            context=authority.context(),
        ) as browser:  # fmt: skip
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", browser.port)))
            kept = authority.context().wrap_socket(plain, server_hostname="localhost")
            stack.enter_context(kept)
            assert browser.get("/login").status in (200, 404)
    assert "graceful shutdown exceeded" not in caplog.text
