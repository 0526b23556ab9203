"""Cases that run as one test."""

import pytest

from tests.running.together import together


def test_failing_case_is_named() -> None:
    seen = []

    @together("number", [1, 2, 3])
    def check(number: int) -> None:
        seen.append(number)
        assert number < 2

    with pytest.raises(AssertionError) as found:
        check()
    assert seen == [1, 2]
    assert found.value.__notes__ == ["where number = 2"]


async def test_failing_case_of_a_coroutine_is_named() -> None:
    @together("number", [1, 2, 3])
    async def check(number: int) -> None:
        assert number < 2

    with pytest.raises(AssertionError) as found:
        await check()
    assert found.value.__notes__ == ["where number = 2"]
