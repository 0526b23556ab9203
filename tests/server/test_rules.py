"""The documentation lists what each request needs, as the table of APIs has it."""

from kproxy.server.api_table import TABLE
from tests.harness import ROOT


def test_the_documentation_lists_what_each_request_needs() -> None:
    listed = (ROOT / "docs" / "security.md").read_text().split("## What each request needs")[1]
    rows = [line for line in listed.splitlines() if line.startswith("| ") and "needs" not in line]
    wanted = [
        f"| {api.key.name.replace('_', ' ').title().replace(' ', '')} ({key}) | {api.rule.asks} |"
        for key, api in sorted(TABLE.items())
    ]
    assert rows == wanted
