"""Caches replies to publishes under an idempotency key in this process, to answer repeats without the partition.

The cache saves a round trip and knows when a first request is still in progress. Correctness does not depend on it: if
a reply was evicted, the repeat goes to the partition, which decides.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

import msgspec

from backend_store.model import Claim
from gateway.limits import REPLIES_RUNS_MAX
from push.encoding.publish_reply import Run


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a call; without runs while the call is in progress."""

    payload: bytes
    runs: tuple[Run, ...] | None = None
    """The places of the messages, in the order of the call."""
    fsynced: bool = True
    replicas: int = 1


class _Kept(NamedTuple):
    reply: Reply
    until: float
    """When it expires, in seconds of the monotonic clock."""


class MemoryReplies:
    """The replies of this process: an LRU cache bounded by runs. A reply expires after its queue's dedupe window."""

    def __init__(self, runs_max: int = REPLIES_RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._runs = 0
        """Runs of all cached replies."""
        self._running: dict[bytes, bytes] = {}
        """Key → payload of calls in progress; bounded by their number."""
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        """Cached replies by key, the least recently used first."""

    def begin(self, claim: Claim) -> Reply | None:
        """The reply of an earlier call; None marks this call as in progress."""
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
        """Ends a call whose result must not be cached."""
        self._running.pop(claim.key, None)

    def _forget(self, key: bytes) -> None:
        self._runs -= len(self._kept.pop(key).reply.runs or ())
