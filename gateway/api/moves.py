"""Queues that move from one cluster to another: begun, listed and given up. For operators."""

from __future__ import annotations

from urllib.parse import quote

from backend_store.model import NotFound
from gateway.api.cluster import check_operator
from gateway.api.cluster_shapes import MovePage, MoveWanted
from gateway.clusters_view import ClustersView, move_view
from gateway.context import Gateway
from gateway.http import Answer, Call, json_answer


async def list_moves(gateway: Gateway, call: Call) -> Answer:
    clusters = _clusters(gateway, call)
    call.query()
    return json_answer(MovePage([move_view(move) for move in clusters.moves.under_way()]))


async def begin(gateway: Gateway, call: Call) -> Answer:
    clusters = _clusters(gateway, call)
    wanted: MoveWanted = await call.fields(MoveWanted)
    move = await clusters.moves.begin(wanted.tenant, wanted.queue, wanted.to)
    location = f"/v1/cluster/queues/{quote(move.tenant, safe='')}/{quote(move.queue, safe='')}".encode()
    return json_answer(move_view(move), 202, ((b"location", location),))


async def give_up(gateway: Gateway, call: Call) -> Answer:
    clusters = _clusters(gateway, call)
    call.query()
    tenant, queue = call.params
    await clusters.moves.give_up(tenant, queue)
    return Answer(204, content_type=None)


async def place(gateway: Gateway, call: Call) -> Answer:
    clusters = _clusters(gateway, call)
    call.query()
    tenant, queue = call.params
    return json_answer(clusters.place(tenant, queue))


def _clusters(gateway: Gateway, call: Call) -> ClustersView:
    check_operator(call)
    if gateway.clusters is None:
        raise NotFound("this server keeps its messages itself: queues move where store.backends names a cluster")
    return gateway.clusters
