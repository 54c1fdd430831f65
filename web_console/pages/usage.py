"""A tenant's usage: this month by queue, exact, and the last hour by minute if the job `live_usage` runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from web_console.limits import ROWS_PER_PAGE
from web_console.pages.queues import plots
from web_console.tables import Column, Table, cut
from web_console.visit import Visit

MONTH: Final = (
    Column("queue", "Queue", is_sortable=True),
    Column("published", "Published", "number", is_sortable=True),
    Column("published_bytes", "Published bytes", "bytes", is_sortable=True),
    Column("delivered", "Delivered", "number", is_sortable=True),
)
HOUR: Final = (
    Column("queue", "Queue"),
    Column("operation", "Operation", "code"),
    Column("outcome", "Outcome", "state"),
    Column("requests", "Requests", "number"),
    Column("messages", "Messages", "number"),
    Column("bytes_in", "Bytes in", "bytes"),
    Column("bytes_out", "Bytes out", "bytes"),
)
PLOTS: Final = (
    ("Requests", "a minute", ("requests",)),
    ("Messages", "a minute", ("messages",)),
    ("Bytes", "a minute", ("bytes_in", "bytes_out")),
)
LINES: Final = ("requests", "messages", "bytes_in", "bytes_out")
MINUTE_MS: Final = 60_000
NOTICES: Final = {
    "stale": "The job live_usage has stopped; these are its last numbers.",
    "absent": "The job live_usage has not written anything yet.",
    "unreadable": "The output of the job live_usage cannot be read; see the server log.",
}


async def load(visit: Visit) -> dict[str, Any]:
    rows = await visit.every("/v1/usage", 10_000)
    empty = "No usage this month."
    table = Table("Usage this month, by queue", MONTH, rows, empty, path=visit.path, query=dict(visit.query))
    about = f"Counted from committed records of tenant {visit.caller.tenant}, exact as of the last commit."
    live = await visit.maybe("/v1/usage/live")
    return {"table": cut(table, visit.query, default="-published"), "about": about, "hour": _hour(visit, live)}


def _hour(visit: Visit, live: dict[str, Any] | None) -> dict[str, Any] | None:
    """The last hour; None if the server is not configured with a job's output."""
    if live is None:
        return None
    rows = live["queues"][:ROWS_PER_PAGE]
    empty = "No usage in the last hour."
    caption = "Last hour, by queue and operation"
    there = rows[0]["rows"] if rows else 0
    return {
        "state": live["state"],
        "notice": NOTICES.get(live["state"]),
        "last_minute": live["last_minute"],
        "looked_at": live["looked_at"],
        "plots": plots(series(live["minutes"], live["last_minute"]), PLOTS) if live["minutes"] else [],
        "table": Table(caption, HOUR, rows, empty, path=visit.path),
        "more": max(0, there - len(rows)),
    }


def series(minutes: list[dict[str, Any]], last_minute: str | None) -> dict[str, Any]:
    """Series from the first minute to the last one; 0 where nothing was counted."""
    by_time = {_ms(one["minute"]): one for one in minutes}
    start, end = min(by_time), max(*by_time, _ms(last_minute) if last_minute else 0)
    times = range(start, min(end, start + 59 * MINUTE_MS) + 1, MINUTE_MS)
    nothing = dict.fromkeys(LINES, 0)
    lines = {name: [by_time.get(at, nothing)[name] for at in times] for name in LINES}
    return {"start_ms": start, "step_ms": MINUTE_MS, "series": lines}


def _ms(minute: str) -> int:
    return int(datetime.fromisoformat(minute).timestamp() * 1000)
