"""Unused tickets: what each opens, by the hash of its text, and until when.

A tenant may hold as many tickets as are still free: alone it may hold half of the maximum, so another tenant always has
room.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class _Kept(NamedTuple):
    tenant: str
    opens: bytes
    until_ms: int


class Tickets:
    """Unused tickets. All live equally long, so the oldest expires first."""

    def __init__(self) -> None:
        self._kept: dict[bytes, _Kept] = {}
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def has_room(self, tenant: str, now_ms: int, *, most: int) -> bool:
        while self._kept and self._kept[first := next(iter(self._kept))].until_ms <= now_ms:
            self._forget(first)
        return len(self._kept) < most and self._of[tenant] < most - len(self._kept)

    def put(self, digest: bytes, tenant: str, opens: bytes, until_ms: int) -> None:
        if digest not in self._kept:  # else it is a repeat
            self._of[tenant] += 1
            self._kept[digest] = _Kept(tenant, opens, until_ms)

    def take(self, digest: bytes, now_ms: int) -> bytes | None:
        """What the ticket opens, or None if it is unknown or expired; the ticket is used up."""
        if digest not in self._kept:
            return None
        kept = self._forget(digest)
        return kept.opens if now_ms < kept.until_ms else None

    def _forget(self, digest: bytes) -> _Kept:
        kept = self._kept.pop(digest)
        self._of[kept.tenant] -= 1
        if not self._of[kept.tenant]:
            del self._of[kept.tenant]
        return kept
