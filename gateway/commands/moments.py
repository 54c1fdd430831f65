"""Parameter types for times, RFC 3339 or relative such as `90s`, `15m`, `2h` and `7d` ago; and for durations."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

_AGO = re.compile(r"(\d{1,9})(s|m|h|d)", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"(\d{1,15})(ms|s|m|h|d)?", re.ASCII)
_MS: Final = {None: 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Moment(click.ParamType[datetime]):
    """A time with its zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            if (ago := _AGO.fullmatch(value)) is not None:
                return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            moment = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(
                f"invalid time {value!r}: use a time such as 2026-11-21T10:00:00Z, or an age such as 15m", param, ctx
            )
        return moment if moment.tzinfo is not None else moment.astimezone()


class Duration(click.ParamType[int]):
    """A length of time, in milliseconds: `500`, `500ms`, `90s`, `15m`, `2h`, `7d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if (ms := duration_ms(value)) is None:
            self.fail(f"invalid duration {value!r}: use 500 (milliseconds), 90s, 15m, 2h or 7d", param, ctx)
        return ms


def duration_ms(text: str) -> int | None:
    """The milliseconds of such a text; None where it is no duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else int(found[1]) * _MS[found[2]]


MOMENT: Final = Moment()
DURATION: Final = Duration()
