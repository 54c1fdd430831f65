"""The hybrid logical clock: stamps that keep cause before effect, though no two computers agree on the time.

A stamp is a number of microseconds since 1970: the computer's milliseconds times 1,000, plus a count from 0 to 999 of
the stamps taken meanwhile (Kulkarni et al., "Logical Physical Clocks", 2014). More than a thousand in one millisecond
run over into the next. On the wire it is an RFC 3339 time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class HybridClock:
    """Stamps that only rise. The computer's time comes in as an argument, and may jump as it likes."""

    def __init__(self, *, ahead_ms_max: int) -> None:
        self._ahead_ms_max = ahead_ms_max
        self._last_us = 0

    def tick(self, wall_ms: int) -> int:
        """The stamp of something that happens now; later than every stamp taken or merged before."""
        self._last_us = max(wall_ms * 1000, self._last_us + 1)
        return self._last_us

    def merge(self, stamp_us: int, wall_ms: int) -> bool:
        """Another's stamp was seen: ours are later from here on.

        One too far ahead of our own time is passed over (False): a single broken clock would carry all others along.
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
    """The stamp in microseconds; None for what is no time with a zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if when.tzinfo is None else (when - _EPOCH) // _MICROSECOND
