"""`pushq cluster …`: the backends behind a gateway, leaders and copies; drains, removals, rebalancing and moves."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import quote

import click

from gateway.commands.asking import ask
from gateway.commands.base import group, json_option, run
from gateway.commands.cluster_moves import move, moves, split
from gateway.commands.cluster_plan import apply_plan, plan
from gateway.commands.exits import Failure
from gateway.commands.figures import FigureRange
from gateway.commands.output import put_json, put_table, size, tell
from gateway.commands.target import Target, target_options
from web_console.wording import cluster_state, counted

LOOK_S = 0.5
of_cluster = click.option("--cluster", "of", metavar="NAME", help="The cluster to use.  [default: the home cluster]")


def _ask(target: Target, method: str, path: str = "", *, of: str | None = None, json: Any = None) -> dict[str, Any]:
    """`of`: the name of a cluster; None for the home cluster."""
    query = "" if of is None else f"?cluster={quote(of, safe='')}"
    found: dict[str, Any] = run(ask(target, lambda admin: admin.ask(method, f"/v1/cluster{path}{query}", json=json)))
    return found


def _led_by(state: dict[str, Any], node: str) -> list[str]:
    return [shard["name"] for shard in state["shards"] if shard["leader"] == node]


@group("cluster")
def cluster() -> None:
    """Manage clusters of backends.

    Connect to a gateway whose settings include cluster.coordinator: only such gateways know about backends and shards.
    The key needs the scope operator.
    """


@cluster.command("status")
@click.option(
    "--events", "with_events", is_flag=True, help="Also show recent manager actions and their reasons, newest last."
)
@of_cluster
@target_options
@json_option
def status(with_events: bool, of: str | None, target: Target, as_json: bool) -> None:
    """Show all clusters, or one cluster's backends, shard leaders and replicas."""
    state = _ask(target, "GET", of=of)
    if as_json:
        put_json(state)
        return
    clusters = state.get("clusters", [])  # a server of an earlier version does not say
    if clusters:
        put_table(CLUSTER_COLUMNS, [_cluster_row(one, state["managers"]) for one in clusters])
        tell(_managed(state["managers"]))
    if is_known := state.get("backends_known", True):
        put_table(
            ("node", "zone", "address", "alive", "asked", "leads", "copies", "disk used", "disk free"),
            [_node_row(state, node) for node in state["nodes"]],
        )
        put_table(
            ("shard", "leader", "epoch", "in sync", "copies", "lag", "moving to", "serving"),
            [_shard_row(shard) for shard in state["shards"]],
        )
    else:
        tell("this server has no cluster view: start it with cluster.coordinator = etcd://HOST:PORT")
    if with_events and is_known:
        events = [[event["number"], event["at"], event["kind"], event["text"]] for event in state["events"]]
        put_table(("event", "time", "kind", "what"), events)
    if with_events:
        decided = [
            [event["number"], event["at"], event["kind"], event["cluster"] or "–", event["text"]]
            for event in state.get("manager_events", [])
        ]
        if clusters:
            put_table(("decision", "time", "kind", "cluster", "what"), decided)


CLUSTER_COLUMNS: Final = ("cluster", "model", "backends", "queues", "used", "fullest part", "state", "heard", "detail")


def _cluster_row(cluster: dict[str, Any], managers: dict[str, Any]) -> list[Any]:
    used = cluster["utilisation"]
    return [
        cluster["name"],
        (cluster["model"] or "–").replace("_", " "),
        "–" if cluster["backends"] is None else cluster["backends"],
        cluster["queues"],
        "–" if used is None else f"{used:.0%}",
        cluster["fullest"] or "–",
        cluster_state(cluster, managers),
        cluster["reported_at"] or "–",
        cluster["detail"] or "–",
    ]


def _managed(managers: dict[str, Any]) -> str:
    if managers["holder"] is None:
        return "no manager has run, so it is unknown which clusters are full; start one with `pushq manager`"
    since = f"{managers['holder']} has been the manager since {managers['since']}"
    return f"{since}; last seen {managers['seen_at']}" if managers["is_silent"] else since


def _node_row(state: dict[str, Any], node: dict[str, Any]) -> list[Any]:
    asked = "leaving" if node["removing"] else "draining" if node["draining"] else "–"
    used, free = node["disk_used_bytes"], node["disk_free_bytes"]
    return [
        node["name"],
        node["zone"] or "–",
        node["address"] or "–",
        "yes" if node["alive"] else "no",
        asked,
        ",".join(_led_by(state, node["name"])) or "–",
        node["copies"],
        "–" if used is None else size(used),
        "–" if free is None else size(free),
    ]


def _shard_row(shard: dict[str, Any]) -> list[Any]:
    to = [node for node in shard["wanted"] if node not in shard["replicas"] or node not in shard["in_sync"]]
    lag = [f"{node}:{'?' if entries is None else entries}" for node, entries in sorted(shard["lag"].items())]
    is_moving = set(shard["wanted"]) != set(shard["replicas"])
    return [
        shard["name"],
        shard["leader"] or "–",
        shard["epoch"],
        ",".join(shard["in_sync"]) or "–",
        f"{len(shard['in_sync'])} of {len(shard['replicas'])}",
        ",".join(lag) or "–",
        (",".join(to) or "–") if is_moving else "–",
        "yes" if shard["serving"] else "no",
    ]


@cluster.command("drain")
@click.argument("node", metavar="NODE")
@click.option("--undo", is_flag=True, help="End the drain: the backend may lead again.")
@click.option(
    "--wait",
    "wait_s",
    type=FigureRange(min=0, max=3600),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until it leads nothing.",
)
@of_cluster
@target_options
@json_option
def drain(node: str, undo: bool, wait_s: float, of: str | None, target: Target, as_json: bool) -> None:
    """Move leadership off a backend, and give it no more until the drain is undone.

    The backend keeps its copies, so you can then stop it without interrupting clients. A shard stays where it is while
    no other backend is in sync and not draining.
    """
    found = _ask(target, "DELETE" if undo else "PUT", f"/nodes/{quote(node, safe='')}/drain", of=of)
    if not undo:
        _wait_until_free(target, node, wait_s, of)
    if as_json:
        put_json(found)
    else:
        tell(f"{node} may lead shards again" if undo else f"{node} leads no shards")


def _wait_until_free(target: Target, node: str, wait_s: float, of: str | None) -> None:
    deadline = time.monotonic() + wait_s
    while led := _led_by(_ask(target, "GET", of=of), node):
        if time.monotonic() > deadline:
            raise Failure(f"{node} still leads {', '.join(led)}; the drain continues in the background")
        time.sleep(LOOK_S)


@cluster.command("remove")
@click.argument("node", metavar="NODE")
@click.option("--undo", is_flag=True, help="Cancel the removal: the backend may get copies again.")
@click.option(
    "--wait",
    "wait_s",
    type=FigureRange(min=0, max=86_400),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until it holds no copies.",
)
@of_cluster
@target_options
@json_option
def remove(node: str, undo: bool, wait_s: float, of: str | None, target: Target, as_json: bool) -> None:
    """Remove a backend: its copies are rebuilt elsewhere, then deleted from it.

    It keeps serving in the meantime. Once it holds no copies you can stop it for good; a backend that is already gone
    is replaced immediately. Copies stay where they are if no other backend can take them.
    """
    found = _ask(target, "DELETE" if undo else "PUT", f"/nodes/{quote(node, safe='')}/removal", of=of)
    if not undo:
        _wait_until_empty(target, node, wait_s, of)
    if as_json:
        put_json(found)
    else:
        tell(f"{node} stays in the cluster" if undo else f"{node} holds no copies and can be stopped for good")


def _wait_until_empty(target: Target, node: str, wait_s: float, of: str | None) -> None:
    deadline = time.monotonic() + wait_s
    while copies := sum(found["copies"] for found in _ask(target, "GET", of=of)["nodes"] if found["name"] == node):
        if time.monotonic() > deadline:
            raise Failure(
                f"{node} still has {counted(copies, 'copy', 'copies')}; they move as soon as other backends can take "
                f"them. Publish or drop what {target.command('recover list')} shows on it"
            )
        time.sleep(LOOK_S)


@cluster.command("rebalance")
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
@of_cluster
@target_options
@json_option
def rebalance(dry_run: bool, of: str | None, target: Target, as_json: bool) -> None:
    """Rebalance copies and leadership now, instead of after cluster.rebalance_after_s.

    Copies move a few at a time; run it again when they are done. Nothing starts while a copy is moving.
    """
    wanted = {"dry_run": dry_run} if of is None else {"dry_run": dry_run, "cluster": of}
    found = _ask(target, "POST", "/rebalance", json=wanted)
    if as_json:
        put_json(found)
        return
    moves = [
        [move["shard"], move["kind"], move["source"] or "–", move["to"] or "–", move["why"]] for move in found["moves"]
    ]
    put_table(("shard", "what", "from", "to", "why"), moves)


cluster.add_command(move)
cluster.add_command(split)
cluster.add_command(moves)
cluster.add_command(plan)
cluster.add_command(apply_plan)
