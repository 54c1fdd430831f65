"""A machine's sleep, as its processes see it after waking up."""

from __future__ import annotations

import time

import pytest


class Asleep:
    """Only the clock that counts time asleep goes on meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._slept_s = 0
        self._seconds, self._ns = time.clock_gettime, time.clock_gettime_ns
        monkeypatch.setattr(time, "clock_gettime", lambda clock: self._seconds(clock) + self._of(clock))
        monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: self._ns(clock) + self._of(clock) * 1_000_000_000)

    def sleep_s(self, seconds: int) -> None:
        self._slept_s += seconds

    def _of(self, clock: int) -> int:
        return self._slept_s if clock == time.CLOCK_BOOTTIME else 0
