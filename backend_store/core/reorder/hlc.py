"""Hybrid logical clock: the source of a message's `timestamp`, in the gateway if its producer gave none.

A stamp is one integer, microseconds since 1970: the physical millisecond times 1,000 plus a logical step of 0…999. The
clock stays close to physical time, rises with each stamp, and follows the stamps it sees, so that a message caused by
another one has a later stamp (Kulkarni et al., "Logical Physical Clocks", 2014).

On the wire a stamp is RFC 3339 in UTC: `2026-08-07T12:34:56.789Z` when its logical step is 0, else with six digits,
`2026-08-07T12:34:56.789012Z`, of which the last three are the step. SDKs make stamps in the same way. A producer
without such a clock may send any RFC 3339 time: in UTC or with an offset, with no fraction or up to nine digits, of
which those beyond the sixth are cut off.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from backend_store.core.limits import CLOCK_AHEAD_MS_MAX

_AHEAD_US_MAX = CLOCK_AHEAD_MS_MAX * 1000
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_END_US = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH) // _SECOND * 1_000_000 + 1_000_000


class HybridClock:
    """Makes stamps that rise with each call. The caller provides the physical time, in microseconds."""

    __slots__ = ("_last_us", "_physical_us", "ignored_total", "set_back_total")

    def __init__(self, last_us: int = 0):
        self._last_us = last_us
        self._physical_us = 0
        self.ignored_total = 0
        """Remote stamps that were too far ahead to be followed."""
        self.set_back_total = 0
        """How often the physical clock went back by more than the bound."""

    def tick(self, now_us: int) -> int:
        """Returns the stamp of an event that happens now."""
        return self.span(1, now_us)[0]

    def span(self, count: int, now_us: int) -> range:
        """Returns the stamps of `count` events that happen now, in their order."""
        physical_us = now_us - now_us % 1000
        if physical_us < self._physical_us - _AHEAD_US_MAX:
            # Otherwise, until the clock has caught up, other clocks would ignore its stamps as too far ahead.
            self.set_back_total += 1
            self._last_us = physical_us - 1
            self._physical_us = physical_us
        elif physical_us > self._physical_us:
            self._physical_us = physical_us
        first = max(physical_us, self._last_us + 1)
        self._last_us = first + count - 1
        return range(first, first + count)

    def receive(self, remote_us: int, now_us: int) -> int:
        """Returns the stamp of the receipt of `remote_us`: later than it, unless it is too far ahead to be followed."""
        if remote_us > now_us + _AHEAD_US_MAX:
            self.ignored_total += 1
        elif remote_us > self._last_us:
            self._last_us = remote_us
        return self.tick(now_us)


def format_stamp(time_us: int) -> str:
    """Returns RFC 3339 in UTC, with three decimals for a bare millisecond and six for one with a logical step."""
    seconds, fraction = divmod(time_us, 1_000_000)
    if fraction % 1000:
        return f"{_to_the_second(seconds)}.{fraction:06}Z"
    return f"{_to_the_second(seconds)}.{fraction // 1000:03}Z"


@lru_cache(maxsize=16)
def _to_the_second(seconds: int) -> str:
    return (_EPOCH + seconds * _SECOND).strftime("%Y-%m-%dT%H:%M:%S")


def parse_stamp(text: str) -> int:
    """Returns an RFC 3339 time as microseconds since 1970. Raises `ValueError` with a sentence for the caller."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("use an RFC 3339 time such as 2026-08-07T12:34:56.789Z")
    date, clock, fraction, sign, hours, minutes = found.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}+00:00")
    except ValueError as error:
        raise ValueError(f"invalid time: {error}") from None
    seconds = (moment - _EPOCH) // _SECOND
    if sign:
        offset = (int(hours) * 60 + int(minutes)) * 60
        seconds += -offset if sign == "+" else offset
    time_us = seconds * 1_000_000 + (int(fraction[:6].ljust(6, "0")) if fraction else 0)
    if not 0 <= time_us < _END_US:
        raise ValueError("the year must be between 1970 and 9999")
    return time_us
