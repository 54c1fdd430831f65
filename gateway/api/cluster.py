"""The cluster that keeps the messages: who lives, who leads what, drains and removals. For operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.model import Forbidden, NotFound
from gateway.api.cluster_shapes import NO_CLUSTERS, Rebalance
from gateway.context import Gateway
from gateway.http import Answer, Call, json_answer

if TYPE_CHECKING:
    from gateway.cluster_watch import ClusterWatch


async def get(gateway: Gateway, call: Call) -> Answer:
    watch = _watch(gateway, call)
    return json_answer(watch.state(NO_CLUSTERS if gateway.clusters is None else gateway.clusters.state()))


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
    watch = _watch(gateway, call)
    wanted = await call.fields(Rebalance)
    return json_answer(await watch.rebalance(is_dry=wanted.dry_run))


def _watch(gateway: Gateway, call: Call) -> ClusterWatch:
    if not call.principal.access.is_operator:
        raise Forbidden(f"the cluster is for operators, and the key {call.principal.name!r} has no scope operator")
    call.query()
    if gateway.cluster is None:
        raise NotFound(
            "this server does not have a cluster to show: start it with cluster.coordinator = etcd://HOST:PORT"
        )
    return gateway.cluster
