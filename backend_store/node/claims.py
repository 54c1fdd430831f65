"""Decides claims: whether an idempotency key is new, comes again with the same payload, or belongs to another one.

Key and payload are remembered in the partition's id store, side by side and for the same time. So a key that is known
without the payload was bound to another one, and to know that nothing must be read of the messages themselves. Beside
them stands where the call's messages begin. Where they do not lie together, or some were refused, each message that was
stored is remembered by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from backend_store.model import Claim, IdempotencyMismatch, Original, PushqError
from backend_store.node.refusals import dedupe_full, unreadable_ids
from backend_store.storage.engine import StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.ids import IdStore
    from backend_store.node.partition import Partition

_ONE_BY_ONE = 0
"""Instead of a place: the call's messages are known one by one. Other places are one more than the first offset."""


class Known(Enum):
    """What there is to say of a claim that is no refusal and no whole call."""

    NEW = "new"
    ONE_BY_ONE = "one by one"


class Again(NamedTuple):
    """An earlier call of the same cycle has this claim."""

    call: int


class _Bound(NamedTuple):
    payload: bytes
    call: int


class Claims:
    """One cycle's idempotency keys of one partition."""

    def __init__(self, ids: IdStore, elders: Sequence[Partition], *, partition: int, now_ms: int, window_ms: int):
        self._ids = ids
        self._elders = elders
        self._partition = partition
        self._now_ms = now_ms
        self._window_ms = window_ms
        self._bound: dict[bytes, _Bound] = {}
        """Keys that this cycle binds, with their payloads and the calls that do."""
        self.count = 0
        """Ids that the cycle's claims may add."""

    @property
    def bound(self) -> dict[int, Claim]:
        """Calls that bind a key, and the claim of each."""
        return {bound.call: Claim(key, bound.payload) for key, bound in self._bound.items()}

    def ask(self, claim: Claim, call: int, *, messages: int, added: int) -> Known | Again | Original | PushqError:
        """Binds a key to its payload, or says where the call's messages are, or why the call cannot have the key.

        `added`: ids that this cycle adds beside.
        """
        bound = self._bound.get(claim.key)
        if bound is not None:
            return Again(bound.call) if bound.payload == claim.payload else _mismatch()
        try:
            known = self._find(claim)
            if known is None and not self._ids.has_room(added + self.count + len(claim) + messages):
                return dedupe_full()
        except StorageCorrupt as corrupt:
            return unreadable_ids(corrupt)
        if known is not None:
            return known
        self._bound[claim.key] = _Bound(claim.payload, call)
        self.count += len(claim) + messages
        return Known.NEW

    def _find(self, claim: Claim) -> Known | Original | PushqError | None:
        places = self._ids.lookup(claim, now_ms=self._now_ms, window_ms=self._window_ms)
        partition = self._partition
        for elder in self._elders:
            if not places:
                places = elder.ids.lookup(claim, now_ms=elder.log_ms(), window_ms=self._window_ms)
                partition = elder.index
        if not places:
            return None
        if len(places) < len(claim):
            return _mismatch()
        first = places[0]
        return Known.ONE_BY_ONE if first == _ONE_BY_ONE else Original(first - 1, partition)

    def keep(self, firsts: dict[int, int | None]) -> None:
        """Gives the store what was bound, with the offset of each call's first message; None: known one by one."""
        hashes: list[bytes] = []
        places: list[int] = []
        for key, bound in self._bound.items():
            first = firsts[bound.call]
            hashes += (key, bound.payload)
            places += (_ONE_BY_ONE if first is None else first + 1,) * 2
        if hashes:
            self._ids.add(hashes, places, now_ms=self._now_ms)


def _mismatch() -> IdempotencyMismatch:
    return IdempotencyMismatch("this idempotency key belongs to a request with another payload; take a new key for it")
