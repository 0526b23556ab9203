"""Queue names that templates make, turned back into keys and headers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.metadata.routing import read_template
from kproxy.tools.routes import decoded


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=1, max_size=30), st.binary(min_size=1, max_size=30))
def test_encoded_names_are_turned_back_whatever_their_keys(key: bytes, header: bytes) -> None:
    for text in ("d-{key:%}", "d-{key:hex}", "d-{key:%}.{header:t:%}.x", "{key:hex}g{header:t:%}"):
        template = read_template(text if not text.startswith("{") else "d" + text)
        name, fault = template.fill(key, {b"t": header})
        assert fault is None
        found = template.unfill(name)
        assert found is not None
        assert [value for _, value in found] == [key, header][: len(found)]


@pytest.mark.parametrize(
    ("template", "name", "told"),
    [
        ("d-{key:%}", "d-ann_40example.com", "ann@example.com"),
        ("d-{key:hex}", "d-00ff", "0x00ff"),
        ("d-{key:hash}", f"d-{'a' * 32}", "(a hash)"),
        ("d-{key}", "d-plain", "plain"),
        ("t.{header:tenant:%}.{key}", "t.a_2Fb.k", "header tenant=a/b key=k"),
        ("d-{key:%}", "other", None),
        ("d-{key:%}", "d-a_4", None),
        ("d-{key:hex}", "d-abc", None),
    ],
)
def test_names_for_people(template: str, name: str, told: str | None) -> None:
    assert decoded(read_template(template), name) == told
