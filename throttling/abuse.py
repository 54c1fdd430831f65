"""Distinguishes a client that sometimes runs into its limits from one that does little else."""

from __future__ import annotations

from throttling.config import ABUSE_FACTOR, ABUSE_REFUSED_MIN, ABUSE_SECONDS


class Abuse:
    """The refused publishes of one socket, from the first one on. `now_ms` is any steady clock."""

    __slots__ = ("_allowed", "_began_ms", "_refused")

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._allowed = 0
        self._refused = 0

    def allowed(self, count: int = 1) -> None:
        self._allowed += count

    def refused(self, now_ms: int) -> bool:
        """Counts a refusal. True if the client abuses its limits: for `ABUSE_SECONDS` more than ten times as much was
        refused as was accepted."""
        self._refused += 1
        if now_ms - self._began_ms < ABUSE_SECONDS * 1000:
            return False
        is_abuse = self._refused > max(ABUSE_REFUSED_MIN, ABUSE_FACTOR * self._allowed)
        self._began_ms, self._allowed, self._refused = now_ms, 0, 0
        return is_abuse
