"""The first page: four numbers, and the queues that are getting worse."""

from __future__ import annotations

from typing import Any

from web_console.pages.alerts import what
from web_console.pages.queues import as_row, growth, is_companion, waiting
from web_console.server import QueueRow
from web_console.tables import Column, Table
from web_console.visit import Visit

WORSE_MAX = 15
ALERTS_SHOWN_MAX = 5


def worse(rows: list[QueueRow]) -> list[QueueRow]:
    """Queues with waiting messages, by oldest age times growth: an old backlog that grows comes first."""
    found = [row for row in rows if waiting(row) or row.dead or row.is_away]
    return sorted(found, key=_score, reverse=True)


def _score(row: QueueRow) -> tuple[float, int, int]:
    return _oldest_ms(row) / 1000 * (1 + max(0.0, growth(row) or 0.0)), row.dead, waiting(row)


def _oldest_ms(row: QueueRow) -> int:
    """The age of the oldest waiting message; 0 for a stream."""
    return row.oldest_age_ms if row.kind != "stream" else 0


async def load(visit: Visit) -> dict[str, Any]:
    rows = [row for row in await visit.queues() if not is_companion(row)]
    series = await visit.maybe("/v1/series", range="15m") if visit.may_see("usage") else None
    lines: dict[str, list[float | None]] = series["series"] if series else {}
    found_worse = worse(rows)
    left_out = f"; worst {WORSE_MAX} of {len(found_worse)}" if len(found_worse) > WORSE_MAX else ""
    table = Table(
        f"Getting worse: oldest age × growth{left_out}",
        (
            Column("name", "Queue", link="href"),
            Column("ready", "Ready", "number"),
            Column("growth", "Growth", "rate"),
            Column("oldest_age_ms", "Oldest", "age"),
            Column("dead", "Dead", "number"),
            Column("consumers", "Consumers", "number"),
            Column("why", "Why", "state"),
        ),
        [as_row(row) for row in found_worse[:WORSE_MAX]],
        "No backlog. Queues with waiting messages or dead letters are listed here, worst first.",
        path=visit.path,
        query=dict(visit.query),
    )
    alerts = await visit.maybe("/v1/alerts", state="firing", limit=100)
    found = [one for one in alerts["items"] if not one["silenced_by"]] if alerts else []
    oldest_ms = max((_oldest_ms(row) for row in rows), default=0)
    return {
        "table": table,
        "alerts": [{**one, "what": what(one)} for one in found[:ALERTS_SHOWN_MAX]],
        "more_alerts": max(0, len(found) - ALERTS_SHOWN_MAX),
        "tiles": [
            ("Published", _sum(row.published_per_s for row in rows), "rate", lines.get("published_per_s", [])),
            ("Acknowledged", _sum(row.acked_per_s for row in rows), "rate", lines.get("acked_per_s", [])),
            ("Backlog", sum(waiting(row) for row in rows), "number", lines.get("ready", [])),
            ("Oldest unacknowledged", oldest_ms or None, "age", lines.get("oldest_age_ms", [])),
        ],
        "counts": {
            "queues": len(rows),
            "in_flight": sum(row.in_flight for row in rows),
            "dead": sum(row.dead for row in rows),
            "consumers": sum(row.consumers for row in rows),
        },
    }


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
