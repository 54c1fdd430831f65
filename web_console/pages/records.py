"""What is written down: usage, audit, settings, and what this one node is."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from web_console.limits import ROWS_PER_PAGE
from web_console.pages.queues import plots
from web_console.tables import Column, Table, cut
from web_console.visit import Problem, Visit

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


NODES: Final = (
    Column("name", "Backend"),
    Column("zone", "Zone"),
    Column("address", "Address", "code"),
    Column("alive", "Alive", "state"),
    Column("draining", "Draining", "state"),
    Column("removing", "To be removed", "state"),
    Column("copies", "Copies", "number"),
    Column("disk_used_bytes", "Disk used", "bytes"),
    Column("disk_free_bytes", "Disk free", "bytes"),
)
SHARDS: Final = (
    Column("name", "Shard"),
    Column("leader", "Leader"),
    Column("epoch", "Epoch", "number"),
    Column("in_sync", "In sync"),
    Column("replicas", "Replicas"),
    Column("wanted", "Shall be"),
    Column("lag", "Entries behind"),
    Column("serving", "Serving", "state"),
)
EVENTS: Final = (
    Column("number", "Number", "number"),
    Column("at", "When", "time"),
    Column("kind", "Event", "code"),
    Column("text", "What"),
)


async def load_audit(visit: Visit) -> dict[str, Any]:
    page = await visit.get("/v1/audit", limit=ROWS_PER_PAGE, cursor=visit.query.get("cursor"))
    rows = [_audit_row(one) for one in page["items"]]
    table = Table(
        "Audit, the newest first",
        AUDIT,
        rows,
        "Nobody has changed anything yet.",
        path=visit.path,
        query=dict(visit.query),
        total=len(rows),
        following=page["next"],
    )
    return {"table": table, "about": "What administrators did. A row is written before its act is done."}


def _audit_row(one: dict[str, Any]) -> dict[str, Any]:
    changed = "; ".join(f"{each.get('field')}: {each.get('before')} → {each.get('after')}" for each in one["changes"])
    return {**one, "changed": changed or None}


async def load_settings(visit: Visit) -> dict[str, Any]:
    rows = [{"setting": key, "value": value} for key, value in visit.server.settings()]
    table = Table(
        "Settings",
        (Column("setting", "Setting", "code", is_sortable=True), Column("value", "Value", "code")),
        rows,
        "",
        path=visit.path,
        query=dict(visit.query),
    )
    return {"table": cut(table, visit.query, default="setting"), "about": "Changed in pushq.toml, PUSHQ_… or flags."}


NODE_PLOTS: Final = (
    ("Loop lag", "ms", ("loop_lag_ms",)),
    ("Memory", "bytes", ("memory_bytes",)),
    ("Disk used", "%", ("disk_used_percent",)),
    ("Commits", "", ("commit_ms", "commits_per_s")),
    ("Connections", "", ("connections",)),
)


async def load_node(visit: Visit) -> dict[str, Any]:
    series = await visit.maybe("/v1/series/node", range="15m")
    return {"plots": plots(series, NODE_PLOTS) if series else [], **await _cluster(visit)}


async def _cluster(visit: Visit) -> dict[str, Any]:
    """Tables of its backends and shards; none without a cluster, and a sentence where nobody knows how it is."""
    try:
        state = await visit.maybe("/v1/cluster")
    except Problem as problem:
        if problem.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return {"cluster": [], "unknown": problem.detail}
    if state is None:
        return {"cluster": [], "unknown": None}
    nodes = [
        {**node, **{key: "yes" if node[key] else "no" for key in ("alive", "draining", "removing")}}
        for node in state["nodes"]
    ]
    shards = [
        {
            **shard,
            "replicas": ", ".join(shard["replicas"]),
            "in_sync": ", ".join(shard["in_sync"]),
            "wanted": ", ".join(shard["wanted"]),
            "lag": ", ".join(f"{name}: {'?' if lag is None else lag}" for name, lag in sorted(shard["lag"].items())),
            "serving": "yes" if shard["serving"] else "no",
        }
        for shard in state["shards"]
    ]
    return {
        "cluster": [
            Table("Backends", NODES, nodes, "No backend is there.", path=visit.path),
            Table("Shards", SHARDS, shards, "No shard is placed yet.", path=visit.path),
            Table("Events", EVENTS, state["events"][::-1], "Nothing has happened yet.", path=visit.path),
        ],
        "unknown": None,
    }


async def load_help(visit: Visit) -> dict[str, Any]:
    return {}
