"""A search for names that a request of kproxy's own tools says beside what Kafka's API has.

It is a tagged field of the request's header (KIP-482), which no client of Kafka's sends. Kafka, and
a kproxy that does not know it, answer as if it were not there: who asks looks at the names of the
answer by the same search once more.

An expression matches a whole name. It is RE2's, as in a consumer group's subscription: the time is
linear in the name, and an expression that takes much memory is refused.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
import re2  # type: ignore[import-untyped]

from kproxy.common.errors import Code, KafkaError

TAG = 27_504
"""The tag of the field, of which Kafka is far away: `kp`."""
_SEARCH_BYTES = 8192
_EXPRESSION_CHARACTERS = 1000
_RANGE_BYTES = 250
_LAST = b"\xff"
"""The end of all names in UTF-8."""
_COMPILED_BYTES = 1 << 20  # more of it holds the loop while it is compiled, or looks at a name

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.max_mem = _COMPILED_BYTES

Matches = Callable[[bytes], object]
"""Whether a name is searched for."""


class NameSearch(NamedTuple):
    """The names that are searched for; without any field: all.

    `first`: those from this one on. `limit`: so many at most, in the order of names; 0: all. Both
    are for groups: queues have Kafka's own cursor and limit.
    """

    prefix: str = ""
    contains: str = ""
    matching: str = ""
    first: str = ""
    limit: int = 0

    def encode(self) -> bytes:
        return orjson.dumps({name: value for name, value in self._asdict().items() if value})

    @property
    def begin(self) -> str:
        """The name from which on there may be any."""
        least = self._range[0].decode(errors="ignore")  # a part of a character is at its end
        return max(self.first, self.prefix, least)

    def ends_before(self, name: bytes) -> bool:
        """Return whether none from this name on is meant, of those from `begin` on."""
        return not name.startswith(self.prefix.encode()) or name > self._range[1]

    @property
    def _range(self) -> tuple[bytes, bytes]:
        """The least and the greatest name that the expression may match."""
        return _range_of(self.matching) if self.matching else (b"", _LAST)

    def matcher(self) -> Matches:
        """Return whether a name in UTF-8 is meant, by all but `limit`. Raise KafkaError."""
        checks: list[Matches] = []
        if contains := self.contains.encode():
            checks.append(lambda name: contains in name)
        if prefix := self.prefix.encode():
            checks.append(lambda name: name.startswith(prefix))
        if first := self.first.encode():
            checks.append(lambda name: name >= first)
        if self.matching:
            checks.append(expression_of(self.matching).fullmatch)
        if len(checks) == 1:
            return checks[0]
        return lambda name: all(check(name) for check in checks)


ALL = NameSearch()
"""No search: all names."""


@lru_cache(maxsize=100)
def expression_of(text: str) -> Any:
    """Return a pattern with `fullmatch`. Raise KafkaError (INVALID_REGULAR_EXPRESSION)."""
    if len(text) > _EXPRESSION_CHARACTERS:
        reason = f"it has more than {_EXPRESSION_CHARACTERS} characters"
        raise KafkaError(Code.INVALID_REGULAR_EXPRESSION, reason)
    try:
        return re2.compile(text, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as error:
        said = error.args[0] if error.args else ""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise KafkaError(Code.INVALID_REGULAR_EXPRESSION, reason) from None


@lru_cache(maxsize=100)
def _range_of(text: str) -> tuple[bytes, bytes]:
    try:
        least, greatest = expression_of(text).possiblematchrange(_RANGE_BYTES)
    except re2.error:
        return b"", _LAST
    return least, greatest


def read_search(data: bytes) -> NameSearch:
    """Read what a request says. Raise KafkaError (INVALID_REQUEST)."""
    wrong = KafkaError(Code.INVALID_REQUEST, "no search for names")
    if len(data) > _SEARCH_BYTES:
        raise wrong
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise wrong from None
    if not isinstance(said, dict):
        raise wrong
    known = {name: said[name] for name in NameSearch._fields if name in said}
    for name, value in known.items():
        if type(value) is not type(NameSearch._field_defaults[name]):
            raise wrong
    search = NameSearch(**known)
    if search.limit < 0:
        raise wrong
    return search
