"""The reference tables of the documentation are those that the code says."""

import pytest

from tests.project.documents import COMMAND, TABLES, UNKNOWN, _page, made


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_as_the_code_says(name: str) -> None:
    assert _page(name) == made(name), f"docs/{name} differs from the code: run `{COMMAND}`"
    assert UNKNOWN not in _page(name), f"docs/{name}: write what is new"
