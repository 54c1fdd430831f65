"""Service level objectives: how fast the error budget burns, in two windows of time at once.

A short window alone raises false alarms; a long one alone is late, and slow to end. So both of a pair must burn faster
than the pair's threshold: 14.4 times over 5 minutes and an hour (2 % of a month's budget in an hour), or 6 times over
30 minutes and 6 hours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gateway.alerts.limits import SLO_EVENTS_MIN, SLO_MINUTES


class Pair(NamedTuple):
    short_minutes: int
    long_minutes: int
    threshold: float


PAIRS: Final = (Pair(5, 60, 14.4), Pair(30, 360, 6.0))


HOUR_MINUTES: Final = 60
HOURS_KEPT: Final = SLO_MINUTES // HOUR_MINUTES + 1
"""Hours that the minutes span."""

Counted = tuple[int, int, int]
"""A minute, its requests, and those that were not good enough."""


class Budget:
    """Counts of requests, and of those that were not good enough, by minute; owned by `Budgets`."""

    __slots__ = ("_bad", "_changed", "_minutes", "_total")

    def __init__(self, known: Iterable[Counted] = ()) -> None:
        self._changed: set[int] = set()
        """Hours in which something was counted since `take_changed`."""
        self._minutes = [-1] * SLO_MINUTES
        self._total = [0] * SLO_MINUTES
        self._bad = [0] * SLO_MINUTES

        for counted in known:
            self.put(*counted)
        self._changed.clear()

    def put(self, minute: int, total: int, bad: int) -> None:
        """Sets the counts of a minute. The counts with more requests win: a process that has just begun has seen less
        of the minute than the one before."""
        at = minute % SLO_MINUTES
        known = self._minutes[at]
        is_wrong = known - minute > SLO_MINUTES  # it was counted by a clock that was far ahead
        if minute > known or is_wrong or (minute == known and (total, bad) > (self._total[at], self._bad[at])):
            self._minutes[at], self._total[at], self._bad[at] = minute, total, bad
            if total:
                self._change(minute // HOUR_MINUTES)

    def _change(self, hour: int) -> None:
        if hour not in self._changed:
            self._changed = {hour, *(one for one in self._changed if one > hour - HOURS_KEPT)}

    def take_changed(self) -> dict[int, list[Counted]]:
        """By hour, the counts of the hours that changed since the last call."""
        hours, self._changed = self._changed, set()
        return {hour: self._of_hour(hour) for hour in sorted(hours)}

    def _of_hour(self, hour: int) -> list[Counted]:
        found: list[Counted] = []
        for minute in range(hour * HOUR_MINUTES, (hour + 1) * HOUR_MINUTES):
            at = minute % SLO_MINUTES
            if self._minutes[at] == minute and self._total[at]:
                found.append((minute, self._total[at], self._bad[at]))
        return found

    def counts(self, until: int, minutes: int) -> tuple[int, int]:
        """Total and bad requests of the `minutes` that end with `until`."""
        total = bad = 0
        for minute in range(until - minutes + 1, until + 1):
            at = minute % SLO_MINUTES
            if self._minutes[at] == minute:
                total += self._total[at]
                bad += self._bad[at]
        return total, bad

    def burn(self, until: int, minutes: int, objective: float) -> float | None:
        """How many times faster than allowed the budget burns; None where there were too few requests."""
        total, bad = self.counts(until, minutes)
        if total < SLO_EVENTS_MIN:
            return None
        return bad / total / (1 - objective / 100)

    def value(self, until: int, objective: float) -> float | None:
        """The largest burn rate of a pair relative to its threshold: above 1 is an alert. None if unknown."""
        found: list[float] = []
        for pair in PAIRS:
            short = self.burn(until, pair.short_minutes, objective)
            long = self.burn(until, pair.long_minutes, objective)
            if long is not None:
                found.append(min(short if short is not None else 0.0, long) / pair.threshold)
        return max(found) if found else None
