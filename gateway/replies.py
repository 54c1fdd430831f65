"""Answers to publishes under an idempotency key, kept in this process to be given again without asking the partition.

They save a round trip and tell that a first request is still under way. Nothing rests on them: a reply that was
forgotten sends the repeat to the partition, which has the last word.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

import msgspec

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
    until: float
    """By the monotonic clock, in seconds."""


class MemoryReplies:
    """Replies of this process: the least recently used make room, each goes when its queue's window is over."""

    def __init__(self, runs_max: int = REPLIES_RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._runs = 0
        """Of all that is kept."""
        self._running: dict[bytes, bytes] = {}
        """The payloads of calls under way, by key: as many as those are."""
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        """The least recently used first."""

    def begin(self, claim: Claim) -> Reply | None:
        """The reply of an earlier call, or None: from now on this one is under way."""
        payload = self._running.get(claim.key)
        if payload is not None:
            return Reply(payload)
        kept = self._kept.get(claim.key)
        if kept is not None:
            if kept.until > time.monotonic():
                self._kept.move_to_end(claim.key)
                return kept.reply
            self._forget(claim.key)
        self._running[claim.key] = claim.payload
        return None

    def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        self._running.pop(claim.key, None)
        if claim.key in self._kept:
            self._forget(claim.key)
        runs = len(reply.runs or ())
        if runs > self._runs_max:
            return
        now = time.monotonic()
        self._kept[claim.key] = _Kept(reply, now + window_ms / 1000)
        self._runs += runs
        while self._kept:
            key, oldest = next(iter(self._kept.items()))
            if self._runs <= self._runs_max and oldest.until > now:
                break
            self._forget(key)

    def drop(self, claim: Claim) -> None:
        """The call came to nothing that may be said again."""
        self._running.pop(claim.key, None)

    def _forget(self, key: bytes) -> None:
        self._runs -= len(self._kept.pop(key).reply.runs or ())
