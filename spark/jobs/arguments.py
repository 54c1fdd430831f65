"""Types of job arguments, so that invalid values are reported before Spark starts."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Final

_DURATION: Final = re.compile(r"\d{1,6} +(second|minute|hour|day)s?")


def moment(text: str) -> str:
    """An RFC 3339 time or a date; in UTC if it has no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time such as 2026-11-22T00:00:00Z") from None
    return found.replace(tzinfo=found.tzinfo or UTC).isoformat()


def duration(text: str) -> str:
    if _DURATION.fullmatch(text) is None:
        raise ArgumentTypeError(f"{text!r} is not a duration such as '5 minutes'")
    return text


def above_zero(text: str) -> float:
    return _number(text, is_zero_fine=False)


def from_zero(text: str) -> float:
    return _number(text, is_zero_fine=True)


def whole(text: str) -> int:
    """A positive integer."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _number(text: str, *, is_zero_fine: bool) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or found < 0 or (found == 0 and not is_zero_fine):
        raise ArgumentTypeError(f"{text!r} is not a number {'of at least 0' if is_zero_fine else 'above 0'}")
    return found
