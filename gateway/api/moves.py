"""HTTP handlers for moves of queues to other clusters, or over several: begin, list and give up. For operators."""

from __future__ import annotations

from urllib.parse import quote

from backend_store.model import FieldError, InvalidRequest, NotFound
from gateway.api.cluster import check_operator
from gateway.api.http import Answer, Call, json_answer
from gateway.api.shapes.clusters import MovePage, MoveView, MoveWanted, QueuePlace
from gateway.clusters.overview import ClustersView, move_view
from gateway.context import Gateway
from gateway.limits import SPLIT_CLUSTERS_MAX
from push.operations.checks import field as invalid_field


async def list_moves(gateway: Gateway, call: Call) -> Answer:
    clusters = _clusters(gateway, call)
    call.query()
    return json_answer(MovePage([move_view(move) for move in clusters.moves.under_way()]))


async def begin(gateway: Gateway, call: Call) -> Answer:
    clusters = _clusters(gateway, call)
    wanted: MoveWanted = await call.fields(MoveWanted)
    tenant, queue = wanted.tenant, wanted.queue
    location = f"/v1/cluster/queues/{quote(tenant, safe='')}/{quote(queue, safe='')}".encode()
    _check(wanted)
    if wanted.to is not None:
        answer: MoveView | QueuePlace = move_view(await clusters.moves.begin(tenant, queue, wanted.to))
    else:
        assert wanted.over is not None
        await clusters.moves.spread(tenant, queue, wanted.over)
        answer = clusters.place(tenant, queue)
    return json_answer(answer, 202, ((b"location", location),))


def _check(wanted: MoveWanted) -> None:
    """Raises `InvalidRequest` for contradictory or invalid targets."""
    over = wanted.over
    if (wanted.to is None) == (over is None):
        detail = "set either to (the target cluster) or over (the clusters that share the queue)"
        raise InvalidRequest(detail, errors=(FieldError("/to", detail), FieldError("/over", detail)))
    if over is None:
        return
    wrong = ""
    if not 1 <= len(over) <= SPLIT_CLUSTERS_MAX:
        wrong = f"over must name 1 to {SPLIT_CLUSTERS_MAX} clusters, not {len(over)}"
    elif not all(over):
        wrong = "over has an empty name; use cluster names from the settings"
    elif len(set(over)) < len(over):
        wrong = "over names a cluster twice"
    if wrong:
        raise invalid_field("/over", wrong)


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
        raise NotFound("this server stores messages itself: moving queues requires store.backends")
    return gateway.clusters
