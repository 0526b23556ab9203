"""A table of lanes by hash, in arrays: a million of them take some 30 MB, not 150.

A lane that has nothing any more stays until its part of the table is full. Then all such lanes of
that part leave, and their numbers are given again.
"""

from array import array
from collections.abc import Callable

import mmh3

NONE = 0xFFFFFFFF
"""No lane, no record, no place."""
_PARTS = 256  # the slots are in so many: one grows at a time, in about a millisecond
_PART_MASK, _PART_BITS = _PARTS - 1, 8
_SLOTS_MIN = 8
_SMALL = 64  # slots of a part that becomes twice as large, and not a quarter larger
_FULL, _FULL_OF = 3, 4  # a part is full when so much of it is used
_ROOMY, _ROOMY_OF = 5, 8  # a part has room when no more is
_WORD = (1 << 64) - 1
_BITS_FROM = 20


def hash_of(value: bytes | None) -> int:
    """Return the hash of a lane. Two of one hash are one lane, which breaks no promise."""
    found: int = mmh3.hash64(value or b"")[0] & _WORD
    return found


class LaneTable:
    """The numbers of lanes. `tails`: of each the last record that is available, else NONE.

    `salt`: an odd number nobody knows: who chooses keys does not choose where they lie.
    """

    __slots__ = ("_free", "_salt", "_slots", "_used", "hashes", "tails")

    def __init__(self, salt: int) -> None:
        self._salt = salt | 1
        self.hashes = array("Q")
        self.tails = array("I")
        self._slots = [array("I", [NONE] * _SLOTS_MIN) for _ in range(_PARTS)]
        self._used = [0] * _PARTS
        self._free = array("I")

    def __len__(self) -> int:
        """Return how many numbers were given, also those that are free again."""
        return len(self.hashes)

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        return 12 * len(self.hashes) + 4 * (len(self._free) + sum(map(len, self._slots)))

    def find(self, hashed: int) -> int:
        """Return the number of a lane; NONE: it is not there."""
        place = (hashed * self._salt & _WORD) >> _BITS_FROM
        slots, hashes = self._slots[place & _PART_MASK], self.hashes
        count = len(slots)
        at = (place >> _PART_BITS) % count
        while (number := slots[at]) != NONE and hashes[number] != hashed:
            at = at + 1 if at + 1 < count else 0
        return number

    def add(self, hashed: int, idle: Callable[[int], bool]) -> int:
        """Return the number of a lane that is not there yet.

        `idle`: whether a lane without records may leave.
        """
        place = (hashed * self._salt & _WORD) >> _BITS_FROM
        part = place & _PART_MASK
        if (self._used[part] + 1) * _FULL_OF > len(self._slots[part]) * _FULL:
            self._make_room(part, idle)
        if self._free:
            number = self._free.pop()
            self.hashes[number] = hashed
        else:
            number = len(self.hashes)
            self.hashes.append(hashed)
            self.tails.append(NONE)
        self._put(self._slots[part], place, number)
        self._used[part] += 1
        return number

    def _put(self, slots: "array[int]", place: int, number: int) -> None:
        count = len(slots)
        at = (place >> _PART_BITS) % count
        while slots[at] != NONE:
            at = at + 1 if at + 1 < count else 0
        slots[at] = number

    def _make_room(self, part: int, idle: Callable[[int], bool]) -> None:
        """Let go of lanes that have nothing; where these are few the part becomes larger."""
        kept: list[int] = []
        for number in self._slots[part]:
            if number == NONE:
                continue
            if self.tails[number] == NONE and idle(number):
                self._free.append(number)
            else:
                kept.append(number)
        count = max(_SLOTS_MIN, len(self._slots[part]))
        while (len(kept) + 1) * _ROOMY_OF > count * _ROOMY:
            count += count >> 2 if count > _SMALL else count
        slots = self._slots[part] = array("I", [NONE]) * count
        self._used[part] = len(kept)
        for number in kept:
            self._put(slots, (self.hashes[number] * self._salt & _WORD) >> _BITS_FROM, number)
