"""Decides whether a dependency is asked at all: a circuit breaker, without a clock.

    closed     every call passes; opens when at least half of 20 or more calls of the last 5 s failed
    open       no call passes for a pause of 1 s, which doubles after each failed probe, up to 30 s
    half_open  one call passes as a probe: its success closes the circuit, its failure opens it again

An admitted call gets a pass and returns it with the outcome. A pass from before the last change of state counts for
nothing: an answer that was asked for before the circuit opened says nothing about the dependency's present state.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, NamedTuple

from throttling.config import (
    BREAKER_CALLS_MIN,
    BREAKER_FAILED_FRACTION,
    BREAKER_OPEN_MS_MAX,
    BREAKER_OPEN_MS_MIN,
    BREAKER_WINDOW_MS,
)

State = Literal["closed", "half_open", "open"]

SLOTS: Final = 10
"""Parts of the window; each is counted and dropped as a whole."""


class BreakerRule(NamedTuple):
    """When a circuit opens and for how long."""

    window_ms: int = BREAKER_WINDOW_MS
    calls_min: int = BREAKER_CALLS_MIN
    failed_fraction: float = BREAKER_FAILED_FRACTION
    open_ms_min: int = BREAKER_OPEN_MS_MIN
    open_ms_max: int = BREAKER_OPEN_MS_MAX


class Pass(NamedTuple):
    """Permission to make one call. `period` counts the changes of state."""

    period: int


class Refused(NamedTuple):
    """No call: try again after `retry_after_ms`."""

    retry_after_ms: int


class _Slot:
    __slots__ = ("failed", "number", "total")

    def __init__(self, number: int) -> None:
        self.number = number
        self.total = 0
        self.failed = 0


class Breaker:
    """One dependency's circuit. Times are milliseconds of one clock that never goes back."""

    def __init__(self, rule: BreakerRule = BreakerRule()) -> None:  # noqa: B008 - immutable
        self._rule = rule
        self._slot_ms = max(1, rule.window_ms // SLOTS)
        self._slots: deque[_Slot] = deque()
        """The slots of the window, oldest first; empty unless closed."""
        self._period = 0
        self._opened_ms: int | None = None
        """When the circuit opened last; None while it is closed."""
        self._pause_ms = rule.open_ms_min
        self._is_probing = False
        """A probe is in progress; only while the circuit is not closed."""

    @property
    def state(self) -> State:
        """The state. Half open means that a probe is in progress: a circuit whose pause is over stays open until the
        next call."""
        if self._opened_ms is None:
            return "closed"
        return "half_open" if self._is_probing else "open"

    def admit(self, now_ms: int) -> Pass | Refused:
        """Permission for a call, or how long there will be none."""
        if self._opened_ms is None:
            return Pass(self._period)
        wait_ms = self._opened_ms + self._pause_ms - now_ms
        if wait_ms > 0:
            return Refused(wait_ms)
        if self._is_probing:
            return Refused(self._rule.open_ms_min)
        self._is_probing = True
        self._period += 1
        return Pass(self._period)

    def succeeded(self, leave: Pass, now_ms: int) -> None:
        """The dependency answered, even if with a refusal."""
        if leave.period != self._period:
            return
        if self._opened_ms is None:
            self._slot(now_ms).total += 1
        else:
            self._close()

    def failed(self, leave: Pass, now_ms: int) -> None:
        """The dependency did not answer, or said that it is unhealthy."""
        if leave.period != self._period:
            return
        if self._opened_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, self._rule.open_ms_max)
            self._open(now_ms)
            return
        slot = self._slot(now_ms)
        slot.total += 1
        slot.failed += 1
        total = sum(each.total for each in self._slots)
        failed = sum(each.failed for each in self._slots)
        if total >= self._rule.calls_min and failed >= self._rule.failed_fraction * total:
            self._open(now_ms)

    def abandoned(self, leave: Pass) -> None:
        """The caller left before there was an outcome. If it was the probe, the next call is one."""
        if leave.period == self._period:
            self._is_probing = False

    def _slot(self, now_ms: int) -> _Slot:
        """The present slot of the window; drops slots older than the window."""
        number = now_ms // self._slot_ms
        while self._slots and self._slots[0].number <= number - SLOTS:
            self._slots.popleft()
        if not self._slots or self._slots[-1].number < number:
            self._slots.append(_Slot(number))
        return self._slots[-1]

    def _open(self, now_ms: int) -> None:
        self._period += 1
        self._opened_ms = now_ms
        self._is_probing = False
        self._slots.clear()

    def _close(self) -> None:
        self._period += 1
        self._opened_ms = None
        self._is_probing = False
        self._pause_ms = self._rule.open_ms_min
