"""The hybrid logical clock: stamps that order cause before effect, though computers' clocks differ."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class HybridClock:
    """Stamps that only rise. The computer's time is an argument, and may jump in either direction."""

    def __init__(self, *, ahead_ms_max: int) -> None:
        self._ahead_ms_max = ahead_ms_max
        self._last_us = 0

    def tick(self, wall_ms: int) -> int:
        """The stamp of something that happens now; later than every stamp taken or merged before."""
        self._last_us = max(wall_ms * 1000, self._last_us + 1)
        return self._last_us

    def merge(self, stamp_us: int, wall_ms: int) -> bool:
        """Takes in another producer's stamp: our own are later from now on.

        A stamp too far ahead of our own time is ignored (False): a single broken clock would advance all others.
        """
        if stamp_us > (wall_ms + self._ahead_ms_max) * 1000:
            return False
        self._last_us = max(self._last_us, stamp_us)
        return True


def stamp_text(stamp_us: int) -> str:
    """The stamp as RFC 3339 in UTC: three digits when it is a whole millisecond, else six."""
    when = _EPOCH + stamp_us * _MICROSECOND
    digits = "microseconds" if stamp_us % 1000 else "milliseconds"
    return when.replace(tzinfo=None).isoformat(timespec=digits) + "Z"


def stamp_us(text: str) -> int | None:
    """The stamp in microseconds; None if `text` is not a time with a zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if when.tzinfo is None else (when - _EPOCH) // _MICROSECOND
