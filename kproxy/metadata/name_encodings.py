"""Encodings of keys and headers as parts of queue names: any bytes name a queue.

    %      a byte that is not legal in a name is `_XX`, in hexadecimal digits, and so is `_` itself:
           `ann@example.com` is `ann_40example.com`
    hex    two digits for each byte
    hash   32 digits, of 128 bits (MurmurHash3): of keys of any length, and not to be turned back

The first two can be turned back. In a template of several fields the text behind a field ends it,
so `%` encodes the first character of that text, too. A hash is no defence against somebody who
looks for two keys with the same one: their records would be in one queue, with their keys.
"""

import re
from functools import lru_cache
from string import ascii_letters, ascii_uppercase, digits
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import mmh3

PERCENT, HEX, HASH = "%", "hex", "hash"
_LEGAL = frozenset(f"{ascii_letters}{digits}.-".encode())
_ENDS = frozenset(".-" + ascii_letters[6:26] + ascii_uppercase[6:])
"""Characters that neither encoding uses for itself: one of them ends a field."""


class Encoding(NamedTuple):
    """An encoding of one field of a template. `end`: the first character of the text behind it."""

    kind: str
    end: str

    def encode(self, value: bytes) -> bytes:
        """Return a part of a queue name."""
        if self.kind == PERCENT:
            return b"".join(map(_table(self.end).__getitem__, value))
        if self.kind == HEX:
            return value.hex().encode()
        return b"%032x" % mmh3.hash128(value, 0, True, signed=False)

    @property
    def pattern(self) -> str:
        """The parts of names that it makes, as a regular expression."""
        if self.kind == PERCENT:
            legal = "".join(re.escape(chr(one)) for one in sorted(_LEGAL - set(self.end.encode())))
            return f"(?:[{legal}]|_[0-9A-F]{{2}})+"
        return "(?:[0-9a-f]{2})+" if self.kind == HEX else "[0-9a-f]{32}"

    def decode(self, part: str) -> bytes | None:
        """Return the value that a part of a queue name stands for; None: a hash does not say."""
        if self.kind == HEX:
            return bytes.fromhex(part)
        return unquote_to_bytes(part.replace("_", "%")) if self.kind == PERCENT else None


def read_encoding(kind: str, behind: str, *, last: bool) -> Encoding:
    """Return an encoding of a field with this text behind it. Raise ValueError.

    `last`: no other field follows.
    """
    if not last and kind != HASH and behind[:1] not in _ENDS:
        raise ValueError(
            "behind an encoded field there must be a . or a - or a letter from g on, where another"
            " field follows: else nobody could tell where it ends"
        )
    return Encoding(kind, "" if last else behind[:1])


@lru_cache(100)
def _table(end: str) -> tuple[bytes, ...]:
    legal = _LEGAL - frozenset(end.encode())
    return tuple(bytes([one]) if one in legal else b"_%02X" % one for one in range(256))
