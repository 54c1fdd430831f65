"""HTTP handlers for the clusters of backends: their state, shard leaders, drains and removals. For operators.

Each call is about the home cluster, or the one that `cluster` names: in the query, or in the body if there is one.
"""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING

from backend_store.model import Forbidden, NotFound
from gateway.api.http import Answer, Call, json_answer
from gateway.api.shapes.clusters import NO_CLUSTERS, ClusterNode, ClustersState, ClusterState, Rebalance
from gateway.config.settings import Settings
from gateway.context import Gateway

if TYPE_CHECKING:
    from gateway.clusters.watch import ClusterWatch


async def get(gateway: Gateway, call: Call) -> Answer:
    check_operator(call)
    name = call.query("cluster").get("cluster")
    if name is None and gateway.cluster is None:
        clusters = gateway.clusters
        return json_answer(_alone(gateway.settings) if clusters is None else _without_backends(clusters.state()))
    watch = _watch_of(gateway, name)
    return json_answer(watch.state(NO_CLUSTERS if gateway.clusters is None else gateway.clusters.state()))


def _alone(settings: Settings) -> ClusterState:
    """Of a server that keeps its messages itself."""
    disk = shutil.disk_usage(settings.data)
    node = ClusterNode(
        settings.node.name or socket.gethostname(),
        zone=settings.node.zone or None,
        address=None,
        alive=True,
        draining=False,
        removing=False,
        copies=0,
        since=None,
        disk_used_bytes=disk.used,
        disk_free_bytes=disk.free,
    )
    return ClusterState(
        clusters=NO_CLUSTERS.clusters,
        managers=NO_CLUSTERS.managers,
        manager_events=NO_CLUSTERS.manager_events,
        plan=NO_CLUSTERS.plan,
        nodes=[node],
        shards=[],
        events=[],
        manager=None,
        age_ms=0,
        is_embedded=True,
    )


def _without_backends(found: ClustersState) -> ClusterState:
    return ClusterState(
        clusters=found.clusters,
        managers=found.managers,
        manager_events=found.manager_events,
        plan=found.plan,
        nodes=[],
        shards=[],
        events=[],
        manager=None,
        age_ms=0,
        backends_known=False,
    )


async def drain(gateway: Gateway, call: Call) -> Answer:
    watch = _watch(gateway, call)
    return json_answer(await watch.drain(call.params[0], is_wanted=True))


async def undrain(gateway: Gateway, call: Call) -> Answer:
    watch = _watch(gateway, call)
    return json_answer(await watch.drain(call.params[0], is_wanted=False))


async def remove(gateway: Gateway, call: Call) -> Answer:
    watch = _watch(gateway, call)
    return json_answer(await watch.remove(call.params[0], is_wanted=True))


async def keep(gateway: Gateway, call: Call) -> Answer:
    watch = _watch(gateway, call)
    return json_answer(await watch.remove(call.params[0], is_wanted=False))


async def rebalance(gateway: Gateway, call: Call) -> Answer:
    check_operator(call)
    wanted = await call.fields(Rebalance)
    watch = _watch_of(gateway, wanted.cluster)
    return json_answer(await watch.rebalance(is_dry=wanted.dry_run))


def _watch(gateway: Gateway, call: Call) -> ClusterWatch:
    check_operator(call)
    return _watch_of(gateway, call.query("cluster").get("cluster"))


def check_operator(call: Call) -> None:
    if not call.principal.access.is_operator:
        raise Forbidden(f"cluster operations need the scope operator, which the key {call.principal.name!r} lacks")


def _watch_of(gateway: Gateway, name: str | None) -> ClusterWatch:
    """The watch of the named cluster; of the home cluster for None. Raises `NotFound`."""
    names = [] if gateway.clusters is None else gateway.clusters.names
    if name is not None and name not in names:
        there = (
            f"the clusters are {', '.join(names)}"
            if names
            else "this server stores messages itself and has no clusters"
        )
        raise NotFound(f"unknown cluster {name[:100]!r}; {there}")
    if name is None or name == names[0]:
        found, setting = gateway.cluster, "cluster.coordinator"
    else:
        found, setting = gateway.further.get(name), f"coordinator of the entry {name!r} of store.clusters"
    if found is None:
        about = name or next(iter(names), None)
        what = "have a cluster to show" if about is None else f"know the leaders of cluster {about!r}"
        raise NotFound(f"this server does not {what}: start it with {setting} = etcd://HOST:PORT")
    return found
