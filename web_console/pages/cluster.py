"""The cluster: its backends and their actions, its shards, and the decisions of its manager."""

from __future__ import annotations

from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

from web_console.tables import Button, Column, Table
from web_console.visit import Problem, Visit
from web_console.wording import cluster_state, counted, percent, plural, write

LOG_ROWS: Final = 10
"""Of decisions and events: those in sight."""
NODES: Final = (
    Column("name", "Backend"),
    Column("zone", "Zone"),
    Column("address", "Address", "code"),
    Column("alive", "Alive", "state"),
    Column("draining", "Draining", "state"),
    Column("removing", "Removing", "state"),
    Column("leads", "Leads"),
    Column("copies", "Copies", "number"),
    Column("disk_used_bytes", "Disk used", "bytes"),
    Column("disk_free_bytes", "Disk free", "bytes"),
)
CLUSTERS: Final = (
    Column("name", "Cluster"),
    Column("model", "Model"),
    Column("backends", "Backends", "number"),
    Column("queues", "Queues", "number"),
    Column("used", "Used"),
    Column("fullest", "Highest usage"),
    Column("state", "State", "state"),
    Column("detail", "Detail"),
    Column("reported_at", "Heard", "time"),
)
DECISIONS: Final = (
    Column("number", "Number", "number"),
    Column("at", "When", "time"),
    Column("kind", "Decision", "code"),
    Column("cluster", "Cluster"),
    Column("text", "What"),
    Column("manager", "By"),
)
PLAN: Final = (
    Column("tenant", "Tenant"),
    Column("queue", "Queue"),
    Column("what", "What"),
    Column("from", "From"),
    Column("to", "To"),
)
MOVES: Final = (
    Column("tenant", "Tenant"),
    Column("queue", "Queue"),
    Column("from", "From"),
    Column("to", "To"),
    Column("state", "State", "state"),
    Column("since", "Since", "time"),
    Column("left", "Left in the old cluster", "number"),
    Column("share", "Share"),
)
SHARDS: Final = (
    Column("name", "Shard"),
    Column("leader", "Leader"),
    Column("epoch", "Epoch", "number"),
    Column("in_sync", "In sync"),
    Column("replicas", "Replicas"),
    Column("wanted", "Planned"),
    Column("lag", "Entries behind"),
    Column("serving", "Serving", "state"),
)
EVENTS: Final = (
    Column("number", "Number", "number"),
    Column("at", "When", "time"),
    Column("kind", "Event", "code"),
    Column("text", "What"),
)

FOLDED: Final = frozenset(
    {"placed", "elected", "lead-moved", "copy-begun", "copy-removed", "copy-moved", "copy-replaced"}
)
"""Events of one shard each, which come for many shards at once."""
FOLDED_WITHIN: Final = timedelta(seconds=10)
"""The time between two events of a row."""
FOLDED_SHARDS_MAX: Final = 10
"""Shards that a row names."""


async def load(visit: Visit) -> dict[str, Any]:
    """Tables of all clusters, of backends and shards; none without a cluster, and `unknown` says why if its state is
    not known."""
    try:
        state = await visit.maybe("/v1/cluster")
    except Problem as problem:
        if problem.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return {"cluster": [], "unknown": problem.detail}
    if state is None or state["is_embedded"]:
        return {"cluster": [], "unknown": None}
    moves = await visit.maybe("/v1/cluster/moves") if state["clusters"] else None
    of_all = _of_all(state, moves["items"] if moves is not None else [], visit.path)
    if not state["backends_known"]:
        return {"cluster": of_all, "unknown": _NO_COORDINATOR}
    nodes = [node_row(node, state["shards"]) for node in state["nodes"]]
    can_ask = visit.may_do("drain")
    return {
        "cluster": [
            *of_all,
            Table("Backends", NODES, nodes, "No backends.", path=visit.path, has_buttons=can_ask),
            Table("Shards", SHARDS, [_shard_row(one) for one in state["shards"]], _NO_SHARD, path=visit.path),
            Table(
                "Events",
                EVENTS,
                _folded(state["events"])[::-1],
                "No events yet.",
                path=visit.path,
                shown_max=LOG_ROWS,
            ),
        ],
        "unknown": None,
    }


def _of_all(state: dict[str, Any], under_way: list[dict[str, Any]], path: str) -> list[Table]:
    """The tables about all clusters; none if this server stores its messages itself. `under_way`: moves of queues
    between clusters."""
    if not state["clusters"]:
        return []
    nobody = "No decisions yet. Start pushq manager to have clusters managed."
    moves = [
        *(_move_row(entry) for entry in state["plan"]["moves"]),
        *(_split_row(entry) for entry in state["plan"]["partitions"]),
    ]
    on_their_way = [{**move, "share": percent(move["share"])} for move in under_way]
    return [
        Table(
            "Clusters", CLUSTERS, [_cluster_row(one, state["managers"]) for one in state["clusters"]], nobody, path=path
        ),
        *([Table("Queues moving between clusters", MOVES, on_their_way, "", path=path)] if under_way else []),
        Table("Decisions", DECISIONS, state["manager_events"][::-1], nobody, path=path, shown_max=LOG_ROWS),
        *([Table("Recommended moves", PLAN, moves, "", path=path)] if moves else []),
    ]


def _folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, oldest first. What happened to many shards at once, as when all backends restart, is one row: the
    latest event, and how many more there were."""
    runs: list[list[dict[str, Any]]] = []
    for event in events:
        if runs and _goes_with(runs[-1][-1], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [run[0] if len(run) == 1 else _folded_row(run) for run in runs]


def _goes_with(before: dict[str, Any], event: dict[str, Any]) -> bool:
    if event["kind"] != before["kind"] or event["kind"] not in FOLDED or None in (before["shard"], event["shard"]):
        return False
    return datetime.fromisoformat(event["at"]) - datetime.fromisoformat(before["at"]) <= FOLDED_WITHIN


def _folded_row(run: list[dict[str, Any]]) -> dict[str, Any]:
    *others, latest = run
    shards = sorted({event["shard"] for event in others}, key=lambda shard: (len(shard), shard))
    named = ", ".join(shards[:FOLDED_SHARDS_MAX]) + (", …" if len(shards) > FOLDED_SHARDS_MAX else "")
    return {**latest, "text": f"{latest['text']}; and {len(others)} more, of {plural(len(shards), 'shard')} {named}"}


def _move_row(entry: dict[str, Any]) -> dict[str, Any]:
    return {"tenant": "default", **entry, "what": "merge" if entry.get("merge") else "move"}


def _split_row(entry: dict[str, Any]) -> dict[str, Any]:
    source, *to = entry["clusters"]
    what = f"{'split, ' if to else ''}{counted(entry['partitions'], 'partition')}"
    return {"tenant": "default", **entry, "what": what, "from": source, "to": ", ".join(to)}


def _cluster_row(cluster: dict[str, Any], managers: dict[str, Any]) -> dict[str, Any]:
    used = cluster["utilisation"]
    return {
        **cluster,
        **_unheard(cluster, managers),
        "model": cluster["model"] and cluster["model"].replace("_", " "),
        "used": None if used is None else f"{used:.0%}",
    }


def _unheard(cluster: dict[str, Any], managers: dict[str, Any]) -> dict[str, Any]:
    """The state and detail of a cluster of which nothing is heard because no manager listens; otherwise nothing."""
    state = cluster_state(cluster, managers)
    if state == cluster["state"]:
        return {}
    if managers["holder"] is None:
        return {"state": state, "detail": "pushq manager is not running, so the load of this cluster is unknown"}
    seen = "yet" if managers["seen_at"] is None else f"since {write('moment', managers['seen_at'])}"
    return {"state": state, "detail": f"{managers['holder']} manages the clusters and has not reported {seen}"}


_NO_SHARD: Final = "No shards are placed yet."
_NO_COORDINATOR: Final = "Backends and shards are unknown: the setting cluster.coordinator is missing."


def node_row(node: dict[str, Any], shards: list[dict[str, Any]]) -> dict[str, Any]:
    led = [shard["name"] for shard in shards if shard["leader"] == node["name"]]
    flags = {key: "yes" if node[key] else "no" for key in ("draining", "removing")}
    flags["alive"] = "yes" if node["alive"] else "away"
    return {**node, **flags, "leads": ", ".join(led) or None, "buttons": [_drain(node, led), _removal(node)]}


def _drain(node: dict[str, Any], led: list[str]) -> Button:
    name = node["name"]
    if node["draining"]:
        question = f"Ends the drain: {name} leads its home shards again."
        return Button("end-drain", "End drain", {"item": name}, question)
    question = (
        f"{_gives(name, led)} It leads no shard until the drain ends, and keeps its replicas. Once it leads none, you "
        "can restart it without interrupting service. A shard stays if no other backend is in sync."
    )
    return Button("drain", "Drain", {"item": name}, question)


def _gives(name: str, led: list[str]) -> str:
    if not led:
        return f"{name} leads no shards now."
    return f"{name} hands over {'shard' if len(led) == 1 else 'shards'} {', '.join(led)}."


def _removal(node: dict[str, Any]) -> Button:
    name = node["name"]
    if node["removing"]:
        question = f"Cancels the removal: {name} stays and can get replicas again."
        return Button("end-removal", "Keep", {"item": name}, question)
    question = (
        f"Moves the {counted(node['copies'], 'replica')} of {name} to other backends. It keeps serving meanwhile; once "
        "it has no replicas, you can shut it down for good. Replicas stay if no other backend can take them. "
        "Keep cancels the removal."
    )
    return Button("remove", "Remove", {"item": name}, question, is_danger=True, word=name)


def _shard_row(shard: dict[str, Any]) -> dict[str, Any]:
    return {
        **shard,
        "replicas": ", ".join(shard["replicas"]),
        "in_sync": ", ".join(shard["in_sync"]),
        "wanted": ", ".join(shard["wanted"]),
        "lag": ", ".join(f"{name}: {'?' if lag is None else lag}" for name, lag in sorted(shard["lag"].items())),
        "serving": "yes" if shard["serving"] else "not served",
    }
