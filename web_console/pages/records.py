"""Records: audit and settings, and the state of this node."""

from __future__ import annotations

from typing import Any, Final

from web_console.limits import ROWS_PER_PAGE
from web_console.pages import cluster
from web_console.pages.queues import plots
from web_console.tables import Column, Table, cut
from web_console.visit import Visit

AUDIT: Final = (
    Column("at", "When", "time"),
    Column("name", "Who"),
    Column("tenant", "Tenant"),
    Column("action", "What", "state"),
    Column("target", "Where", "code"),
    Column("outcome", "Outcome", "state"),
    Column("changed", "Changed", "code"),
    Column("address", "From", "code"),
)


async def load_audit(visit: Visit) -> dict[str, Any]:
    page = await visit.get("/v1/audit", limit=ROWS_PER_PAGE, cursor=visit.query.get("cursor"))
    rows = [_audit_row(one) for one in page["items"]]
    table = Table(
        "Audit log, newest first",
        AUDIT,
        rows,
        "No changes yet.",
        path=visit.path,
        query=dict(visit.query),
        total=len(rows),
        following=page["next"],
    )
    return {"table": table, "about": "Administrative actions. Each is recorded before it is carried out."}


def _audit_row(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "changed": "; ".join(map(_change, one["changes"])) or None}


def _change(change: dict[str, Any]) -> str:
    field, before, after = change["field"], change["before"], change["after"]
    if before is None:
        return f"{field}: {after}"
    return f"{field}: {before} → {'–' if after is None else after}"


async def load_settings(visit: Visit) -> dict[str, Any]:
    rows = [{"setting": key, "value": None if value == '""' else value} for key, value in visit.server.settings()]
    table = Table(
        "Settings",
        (Column("setting", "Setting", "code", is_sortable=True), Column("value", "Value", "code")),
        rows,
        "",
        path=visit.path,
        query=dict(visit.query),
    )
    return {
        "table": cut(table, visit.query, default="setting"),
        "about": "Set in pushq.toml, PUSHQ_… environment variables or flags.",
    }


NODE_PLOTS: Final = (
    ("Loop lag", "ms", ("loop_lag_ms",)),
    ("Memory", "bytes", ("memory_bytes",)),
    ("Connections", "", ("connections",)),
    ("Disk used", "%", ("disk_used_percent",)),
    ("Commits", "", ("commit_ms", "commits_per_s")),
)
OF_STORAGE: Final = frozenset({"Disk used", "Commits"})
"""Plots of a node that keeps messages: a gateway of backends measures nothing of these."""


async def load_node(visit: Visit) -> dict[str, Any]:
    series = await visit.maybe("/v1/series/node", range="15m")
    state = await cluster.load(visit)
    has_backends = bool(state["cluster"] or state["unknown"])
    wanted = [plot for plot in NODE_PLOTS if not (has_backends and plot[0] in OF_STORAGE)]
    return {"plots": plots(series, wanted) if series else [], **state}


async def load_help(visit: Visit) -> dict[str, Any]:
    return {}
