"""Times as users write them, and as they travel: whole milliseconds, and RFC 3339 in UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

Duration = float | timedelta
"""Seconds, or a `timedelta`."""

Moment = datetime | str
"""A `datetime` with a zone, or RFC 3339 text, which travels as it is."""


def milliseconds(duration: Duration) -> int:
    """Whole milliseconds, rounded up: what is not 0 does not become it. Raises `ValueError` below 0."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a time of {seconds} s: it must be 0 or more, and end")
    return -(-round(seconds * 1_000_000) // 1000)


def time_text(moment: Moment) -> str:
    """RFC 3339 with milliseconds. Raises `ValueError` for a time without a zone: whose noon is it?"""
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"a time needs a zone: {moment.isoformat()} is another moment in every country")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
