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
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def has_room(self, tenant: str, now_ms: int, *, most: int) -> bool:
        while self._kept and self._kept[first := next(iter(self._kept))].until_ms <= now_ms:
            self._forget(first)
        return len(self._kept) < most and self._of[tenant] < most - len(self._kept)

    def has_bytes(self, tenant: str, size: int, *, most: int) -> bool:
        """Whether `size` more bytes that tickets open fit; a tenant may have as many as are still free."""
        return self._bytes_of[tenant] + size <= most - self._bytes

    def sweep(self, now_ms: int) -> None:
        """Drops all that have expired, also where they do not live equally long."""
        for digest in [digest for digest, kept in self._kept.items() if kept.until_ms <= now_ms]:
            self._forget(digest)

    def put(self, digest: bytes, tenant: str, opens: bytes, until_ms: int) -> None:
        if digest not in self._kept:  # else it is a repeat
            self._of[tenant] += 1
            self._bytes += len(opens)
            self._bytes_of[tenant] += len(opens)
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
        self._bytes -= len(kept.opens)
        self._bytes_of[kept.tenant] -= len(kept.opens)
        if not self._of[kept.tenant]:
            del self._of[kept.tenant], self._bytes_of[kept.tenant]
        return kept
