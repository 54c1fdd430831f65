"""Answers to publishes under an idempotency key, kept in this process to be given again without asking the partition.

They save a round trip and tell that a first request is still under way. Nothing rests on them: a reply that was
forgotten sends the repeat to the partition, which has the last word.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from cachetools import TLRUCache

from backend_store.model import Claim
from gateway.limits import REPLIES_RUNS_MAX
from push.published import Run


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What a call was answered; without runs while it is under way."""

    payload: bytes
    runs: tuple[Run, ...] | None = None
    """Where the messages stand, in the order of the call."""
    fsynced: bool = True
    replicas: int = 1


class _Kept(NamedTuple):
    reply: Reply
    seconds: float


class MemoryReplies:
    """Replies of this process: the least recently used make room, each goes when its queue's window is over."""

    def __init__(self, runs_max: int = REPLIES_RUNS_MAX) -> None:
        self._running: dict[bytes, Reply] = {}
        """Of calls under way: as many as those are."""
        self._kept: TLRUCache[bytes, _Kept] = TLRUCache(
            runs_max,
            ttu=lambda key, kept, now: now + kept.seconds,
            getsizeof=lambda kept: len(kept.reply.runs or ()),
        )

    def begin(self, claim: Claim) -> Reply | None:
        """The reply of an earlier call, or None: from now on this one is under way."""
        known = self._running.get(claim.key)
        if known is None and (kept := self._kept.get(claim.key)) is not None:
            known = kept.reply
        if known is None:
            self._running[claim.key] = Reply(claim.payload)
        return known

    def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        self.drop(claim)
        if len(reply.runs or ()) <= self._kept.maxsize:
            self._kept[claim.key] = _Kept(reply, window_ms / 1000)

    def drop(self, claim: Claim) -> None:
        """The call came to nothing that may be said again."""
        self._running.pop(claim.key, None)
