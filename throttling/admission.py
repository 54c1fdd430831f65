"""Load shedding: readings in, a level out, which says what the process still accepts. Work is refused before it is
accepted; accepted work is finished, and acks, nacks and extends are never refused.

Levels rise at once and fall one at a time, after a while below the threshold, so that they do not flap around it.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from throttling.config import (
    CALM_FRACTION,
    CALM_MS,
    LAG_REPLAYS_FACTOR,
    MEMORY_PUBLISHES_FRACTION,
    MEMORY_REPLAYS_FRACTION,
    MEMORY_SOCKETS_FRACTION,
    SOJOURN_ALERT_MS,
    SOJOURN_COMMITS,
    SOJOURN_PATIENCE_MS,
)


class Level(IntEnum):
    """What is refused; each level also refuses what those before it do."""

    NORMAL = 0
    NO_NEW_SOCKETS = 1
    NO_REPLAYS = 2
    NO_PUBLISHES = 3


class Readings(msgspec.Struct, frozen=True):
    """The load of the process at one moment."""

    lag_ms: float = 0.0
    """How late the event loop was: the 99th percentile over the last seconds."""
    memory_fraction: float = 0.0
    """Memory in use as a fraction of what the process may have."""


class Admission:
    """The level of one process. Times are milliseconds of any clock that does not go back."""

    def __init__(self, *, lag_ms_max: int) -> None:
        self.level = Level.NORMAL
        self._lag_ms_max = lag_ms_max
        self._calm_since_ms: int | None = None
        """Since when the readings would allow a lower level; None while they do not."""

    def observe(self, readings: Readings, now_ms: int) -> Level:
        """Takes readings; returns the level from now on."""
        asked = self._asked(readings, 1.0)
        if asked >= self.level:
            self.level = asked
        if self._asked(readings, CALM_FRACTION) >= self.level:
            self._calm_since_ms = None
        elif self._calm_since_ms is None:
            self._calm_since_ms = now_ms
        elif now_ms - self._calm_since_ms >= CALM_MS:
            self.level = Level(self.level - 1)
            self._calm_since_ms = now_ms
        return self.level

    def why(self, readings: Readings) -> str:
        """Which reading keeps the level up, with its value."""
        if self._by_lag(readings, CALM_FRACTION) >= self._by_memory(readings, CALM_FRACTION):
            return f"the event loop is {readings.lag_ms:.0f} ms late"
        return f"{readings.memory_fraction:.0%} of the memory limit is used"

    def _asked(self, readings: Readings, part: float) -> Level:
        return max(self._by_lag(readings, part), self._by_memory(readings, part))

    def _by_lag(self, readings: Readings, part: float) -> Level:
        """The level by lag. A late loop alone refuses no publishes: those that wait for the disk have a bound of their
        own."""
        if readings.lag_ms > part * self._lag_ms_max * LAG_REPLAYS_FACTOR:
            return Level.NO_REPLAYS
        return Level.NO_NEW_SOCKETS if readings.lag_ms > part * self._lag_ms_max else Level.NORMAL

    def _by_memory(self, readings: Readings, part: float) -> Level:
        used = readings.memory_fraction
        if used >= part * MEMORY_PUBLISHES_FRACTION:
            return Level.NO_PUBLISHES
        if used >= part * MEMORY_REPLAYS_FRACTION:
            return Level.NO_REPLAYS
        return Level.NO_NEW_SOCKETS if used >= part * MEMORY_SOCKETS_FRACTION else Level.NORMAL


class Backlog:
    """Whether publishes wait too long for the disk: controlled delay (CoDel, RFC 8289), relative to the time of
    commits.

    A group commit takes all that waits, so a wait of about one commit is normal on a busy server. A wait longer than
    that and longer than the target, for longer than the patience, is a backlog that does not go away by itself.
    """

    def __init__(self, *, sojourn_ms_max: int) -> None:
        self.is_shedding = False
        self._target_ms = sojourn_ms_max
        self._above_since_ms: int | None = None
        self._alert_until_ms = 0

    def observe(self, waited_ms: float, commit_ms: float, now_ms: int) -> bool:
        """Takes how long the oldest publish waits and how long the last commit took. Returns whether to refuse new
        publishes."""
        if waited_ms <= max(self._target_ms, SOJOURN_COMMITS * commit_ms):
            if self.is_shedding:
                self._alert_until_ms = now_ms + SOJOURN_ALERT_MS
            self._above_since_ms = None
            self.is_shedding = False
            return False
        if self._above_since_ms is None:
            self._above_since_ms = now_ms
        patience_ms = 0 if now_ms < self._alert_until_ms else SOJOURN_PATIENCE_MS
        self.is_shedding = now_ms - self._above_since_ms >= patience_ms
        return self.is_shedding
