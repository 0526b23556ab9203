"""Kafka's error codes, compared with those that kio makes from Kafka's sources."""

from kio.schema.errors import ErrorCode

from kproxy.common.errors import Code


def test_codes_have_kafkas_names_and_numbers() -> None:
    kafkas = {code.name.upper(): code.value for code in ErrorCode}
    assert {code.name: code.value for code in Code}.items() <= kafkas.items()
