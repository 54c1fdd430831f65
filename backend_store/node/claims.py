"""Decides claims: whether an idempotency key is new, comes again with the same payload, or belongs to another one.

Key and payload are remembered in the partition's id store, side by side and for the same time. So a key that is known
without the payload was bound to another one, and to know that nothing must be read of the messages themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend_store.model import Claim, IdempotencyMismatch, PushqError
from backend_store.node.refusals import dedupe_full, unreadable_ids
from backend_store.storage.engine import StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.ids import IdStore
    from backend_store.node.partition import Partition


class Claims:
    """One cycle's idempotency keys of one partition."""

    def __init__(self, ids: IdStore, elders: Sequence[Partition], *, now_ms: int, window_ms: int):
        self._ids = ids
        self._elders = elders
        self._now_ms = now_ms
        self._window_ms = window_ms
        self._bound: dict[bytes, bytes] = {}
        """Keys that this cycle binds, with their payloads."""

    @property
    def count(self) -> int:
        """Ids that the cycle's claims add."""
        return 2 * len(self._bound)

    def why_not(self, claim: Claim, *, added: int) -> PushqError | None:
        """Binds a key to its payload, or says why a call cannot have it. `added`: ids that this cycle adds beside."""
        bound = self._bound.get(claim.key)
        if bound is not None:
            return None if bound == claim.payload else _mismatch()
        try:
            known = self._ids.lookup(claim, now_ms=self._now_ms, window_ms=self._window_ms)
            for elder in self._elders:
                known |= elder.ids.lookup(claim, now_ms=elder.log_ms(), window_ms=self._window_ms)
            if not known and not self._ids.has_room(added + self.count + len(claim)):
                return dedupe_full()
        except StorageCorrupt as corrupt:
            return unreadable_ids(corrupt)
        if known:
            return None if len(known) == len(claim) else _mismatch()
        self._bound[claim.key] = claim.payload
        return None

    def keep(self) -> None:
        """Gives the store what was bound. A claim is of no message, so of no place."""
        for claim in self._bound.items():
            self._ids.add(claim, (0, 0), now_ms=self._now_ms)


def _mismatch() -> IdempotencyMismatch:
    return IdempotencyMismatch("this idempotency key belongs to a request with another payload; take a new key for it")
