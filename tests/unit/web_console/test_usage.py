"""The lines of the usage page: a point for each minute, 0 where nothing was counted, and never more than an hour."""

from __future__ import annotations

from typing import Any

from web_console.pages.usage import MINUTE_MS, series


def minute(at: str, messages: int) -> dict[str, Any]:
    return {"minute": at, "requests": 1, "messages": messages, "bytes_in": 2, "bytes_out": 3}


def test_minutes_without_anything_are_zero_up_to_the_last_that_was_counted() -> None:
    rows = [minute("2026-11-20T22:01:00.000Z", 4), minute("2026-11-20T22:03:00.000Z", 6)]
    made = series(rows, "2026-11-20T22:04:00Z")
    assert made["step_ms"] == MINUTE_MS and made["start_ms"] == 1_795_212_060_000
    assert made["series"]["messages"] == [4, 0, 6, 0]
    assert series(rows, None)["series"]["bytes_in"] == [2, 0, 2]


def test_a_line_has_an_hour_at_most() -> None:
    rows = [minute("2026-11-20T22:00:00.000Z", 1), minute("2027-11-20T22:00:00.000Z", 2)]
    assert len(series(rows, "2027-11-20T22:00:00Z")["series"]["messages"]) == 60
