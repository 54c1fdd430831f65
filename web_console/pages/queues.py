"""The list of queues, and the page of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from web_console.server import QueueRow
from web_console.tables import Column, Table, cut, page_of
from web_console.visit import Visit, page_path, queue_path
from web_console.wording import write

RANGES: Final = ("15m", "1h", "6h", "24h")
PLOTS: Final = (
    ("Backlog", "messages", ("ready", "in_flight", "delayed")),
    ("Rates", "messages per second", ("published_per_s", "acked_per_s", "redelivered_per_s")),
    ("Oldest message", "age", ("oldest_age_ms",)),
    ("Dead letters", "messages", ("dead",)),
)
WORDS: Final = {
    "ready": "waiting",
    "dead": "dead letters",
    "oldest_age_ms": "oldest",
    "published_per_s": "published",
    "acked_per_s": "acknowledged",
    "redelivered_per_s": "redelivered",
    "loop_lag_ms": "loop lag",
    "memory_bytes": "memory",
    "disk_used_percent": "disk used",
    "commit_ms": "ms per commit",
    "commits_per_s": "commits per second",
}
"""The label of a series in a plot, if its name is not readable as it is."""
OF_STREAM: Final = {**WORDS, "ready": "kept"}
LINE_POINTS: Final = 30
"""Points of the depth's line in the list: one for half a minute."""
COLUMNS: Final = (
    Column("name", "Queue", link="href", is_sortable=True),
    Column("ready", "Ready", "number", is_sortable=True),
    Column("line", "15 min", "line"),
    Column("in_flight", "In flight", "number", is_sortable=True),
    Column("dead", "Dead", "number", is_sortable=True),
    Column("published_per_s", "In", "rate", is_sortable=True),
    Column("acked_per_s", "Out", "rate", is_sortable=True),
    Column("oldest_age_ms", "Oldest", "age", is_sortable=True),
    Column("consumers", "Consumers", "number", is_sortable=True),
    Column("kind", "Kind", is_sortable=True),
)


NUMBERS = ("ready", "in_flight", "dead", "oldest_age_ms", "consumers")


def is_companion(row: QueueRow) -> bool:
    """Whether it holds what another queue could not deliver: it is not meant to have consumers."""
    return row.name.endswith((".dead", ".late"))


def waiting(row: QueueRow) -> int:
    """Messages that a consumer has yet to take; 0 for a stream, which keeps its messages."""
    return 0 if row.kind == "stream" else row.ready


def growth(row: QueueRow) -> float | None:
    if row.published_per_s is None or row.acked_per_s is None:
        return None
    return row.published_per_s - row.acked_per_s


def why(row: QueueRow) -> str:
    """What is wrong with a queue, in words; empty if nothing is."""
    if row.is_away:
        return "its cluster is away"
    if is_companion(row):
        return ""
    grown = growth(row) or 0.0
    if waiting(row) and not row.consumers:
        return "no consumers"
    if waiting(row) and grown > 0.5:
        return "growing"
    return "dead letters" if row.dead else ""


def as_row(row: QueueRow) -> dict[str, Any]:
    return _linked(_unlinked(row))


def _linked(row: dict[str, Any]) -> dict[str, Any]:
    row["href"] = page_path("queues", row["name"])
    return row


def _unlinked(row: QueueRow) -> dict[str, Any]:
    """A row without its address: of thousands that are sorted only one page is shown, and needs addresses."""
    unknown = dict.fromkeys(NUMBERS) if row.is_away else {} if row.oldest_age_ms else {"oldest_age_ms": None}
    return {**msgspec.structs.asdict(row), **unknown, "growth": growth(row), "why": why(row)}


def picked(rows: list[QueueRow], text: str, only: str) -> list[QueueRow]:
    """The queues whose name contains `text` and that match `only`."""
    tests: dict[str, Callable[[QueueRow], bool]] = {
        "waiting": lambda row: waiting(row) > 0,
        "dead": lambda row: row.dead > 0,
        "unattended": lambda row: waiting(row) > 0 and row.consumers == 0,
    }
    text, test = text.casefold(), tests.get(only)
    return [row for row in rows if text in row.name.casefold() and (test is None or test(row))]


async def load_list(visit: Visit) -> dict[str, Any]:
    every = await visit.queues()
    rows = picked(every, visit.query.get("q", "")[:200], visit.query.get("only", ""))
    none_yet = "No queues yet. Queues are listed here with their backlog and rates."
    table = Table(
        "Queues",
        COLUMNS,
        [_unlinked(row) for row in rows],
        "No queues match the filter." if every else none_yet,
        path=visit.path,
        query=dict(visit.query),
    )
    cut(table, visit.query, default="-ready")
    await _draw(visit, [_linked(row) for row in page_of(table)])
    return {"table": table}


async def _draw(visit: Visit, rows: list[dict[str, Any]]) -> None:
    """Adds lines to the shown rows, with one request: companions and new queues have none."""
    if "format" in visit.query or not rows:
        return
    names = ",".join(row["name"] for row in rows)
    page = await visit.maybe("/v1/series/queues", names=names, points=LINE_POINTS, limit=len(rows))
    lines = {item["queue"]: item["values"] for item in page["items"]} if page else {}
    for row in rows:
        row["line"] = lines.get(row["name"])


async def load_one(visit: Visit) -> dict[str, Any]:
    name = visit.params[0]
    queue = await visit.get(queue_path(name))
    wanted = visit.query.get("range", "15m")
    shown = wanted if wanted in RANGES else "15m"
    series = await visit.maybe(queue_path(name, "series"), range=shown)
    groups = await visit.maybe(queue_path(name, "groups"), limit=100) if queue["config"]["kind"] == "stream" else None
    return {
        "title": name,
        "queue": queue,
        "config": sorted((key, msgspec.json.encode(value).decode()) for key, value in queue["config"].items()),
        "groups": groups["items"] if groups else [],
        "ranges": [(one, f"{visit.path}?range={one}", one == shown) for one in RANGES],
        "plots": plots(series, words=OF_STREAM if queue["config"]["kind"] == "stream" else WORDS) if series else [],
        "consumers": await _consumers(visit, name),
    }


def plots(
    series: dict[str, Any], wanted: Any = PLOTS, words: Mapping[str, str] = WORDS
) -> list[tuple[str, str, str, str]]:
    """Heading, unit, the latest values in words, and the data that the script draws."""
    made = []
    for heading, unit, names in wanted:
        there = {name: series["series"][name] for name in names if series["series"].get(name) is not None}
        lines = {words.get(name, name.replace("_", " ")): values for name, values in there.items()}
        if lines:
            data = {"start_ms": series["start_ms"], "step_ms": series["step_ms"], "lines": lines}
            said = ", ".join(f"{name} {_last(values, unit)}" for name, values in lines.items())
            made.append((heading, unit, said, msgspec.json.encode(data).decode()))
    return made


def _last(values: list[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "not measured"
    kind = {"age": "age", "bytes": "bytes"}.get(unit, "number")
    return f"{write(kind, known[-1])} {unit}" if unit in ("ms", "%") else write(kind, known[-1])


async def _consumers(visit: Visit, name: str) -> list[dict[str, Any]]:
    """Connections that read this queue; empty for a role that may not see connections."""
    if not visit.may_see("connections"):
        return []
    every = await visit.every("/v1/connections", 1000)
    return [one for one in every if any(each["queue"] == name for each in one["subscriptions"])]
