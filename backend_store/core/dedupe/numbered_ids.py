"""Names of the messages of one call under an idempotency key: the ids that consumers see, and the dedupe hashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, overload

from backend_store.model import Claim

DIGITS: Final = 3
"""Enough for the messages of one call."""
_HASH_BYTES: Final = 16
_WRITTEN: Final = tuple(f"{number:0{DIGITS}d}" for number in range(10**DIGITS))
"""The digits that a name may end with: formatting a number takes longer than the rest of a name."""


class NumberedNames(Sequence[str]):
    """The names `prefix` + a number of `DIGITS` digits, from `first` on. A block stores the prefix only once."""

    __slots__ = ("_count", "first", "prefix")

    def __init__(self, prefix: str, count: int, first: int = 0):
        assert first + count <= 10**DIGITS, f"{first + count} names, and {DIGITS} digits"
        self.prefix = prefix
        self.first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> NumberedNames: ...
    def __getitem__(self, at: int | slice) -> str | NumberedNames:
        numbers = self.numbers[at]
        if isinstance(numbers, int):
            return self.prefix + _WRITTEN[numbers]
        assert numbers.step == 1, "names that follow each other"
        return NumberedNames(self.prefix, len(numbers), numbers.start)

    def __iter__(self) -> Iterator[str]:
        prefix = self.prefix
        return iter([prefix + digits for digits in _WRITTEN[self.first : self.first + self._count]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NumberedNames):
            return NotImplemented
        return (self.prefix, self.numbers) == (other.prefix, other.numbers)

    def __hash__(self) -> int:
        return hash((self.prefix, self.numbers))

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self._count)

    def packed(self, start: int = 0) -> dict[str, Any]:
        """Returns the names from `start` on as a column of a block's clear part."""
        return {"prefix": self.prefix, "first": self.first + start}


def listed(packed: dict[str, Any], count: int) -> list[str]:
    """Returns the names of a block's `packed` column."""
    prefix, first = packed["prefix"], packed["first"]
    assert 0 <= first <= 10**DIGITS - count, f"{count} names from {first} on, and {DIGITS} digits"
    return [prefix + digits for digits in _WRITTEN[first : first + count]]


def name_in_call(claim: Claim, number: int) -> bytes:
    """Returns the dedupe hash of a message, made of the claim and its number in the call, for calls whose messages are
    not deduplicated as a whole.
    """
    return blake2b(b"%b%d" % (claim.payload, number), digest_size=_HASH_BYTES, key=claim.key).digest()
