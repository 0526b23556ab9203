"""The operations page: each alert is there, with what to do."""

import re

import yaml

from tests.harness import ROOT
from tests.observe.prometheus import DASHBOARD, RULES, panels


def test_each_alert_is_explained() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    text = (ROOT / "docs" / "operations.md").read_text()
    assert re.findall(r"^\| (Kproxy\w+) \|", text, re.MULTILINE) == alerts
    tested = yaml.safe_load((RULES.parent / "alerts_test.yml").read_text())["tests"]
    assert [test["name"] for test in tested] == alerts


def test_each_queried_name_is_a_series() -> None:
    """In the alerts and the dashboard."""
    listed = set(re.findall(r"`(kproxy_\w+)", (ROOT / "docs" / "metrics.md").read_text()))
    for text in (RULES.read_text(), DASHBOARD.read_text()):
        for name in set(re.findall(r"\bkproxy_\w+", text)):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in listed or name in listed, name


def test_the_dashboard_has_a_panel_for_each_title_once() -> None:
    titles = [title for title, _ in panels()]
    assert len(titles) == len(set(titles)) >= 20
