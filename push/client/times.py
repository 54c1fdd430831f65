"""Times as users write them, and as they are sent: whole milliseconds, and RFC 3339 in UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

Duration = float | timedelta
"""Seconds, or a `timedelta`."""

Moment = datetime | str
"""A `datetime` with a zone, or RFC 3339 text, which is sent unchanged."""


def milliseconds(duration: Duration) -> int:
    """Whole milliseconds, rounded up: only 0 becomes 0. Raises `ValueError` below 0."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= seconds < math.inf:
        raise ValueError(f"invalid time of {seconds} s: it must be finite and not negative")
    return -(-round(seconds * 1_000_000) // 1000)


def time_text(moment: Moment) -> str:
    """RFC 3339 with milliseconds. Raises `ValueError` for a time without a zone, which is ambiguous."""
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"a time needs a time zone: {moment.isoformat()} is ambiguous")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
