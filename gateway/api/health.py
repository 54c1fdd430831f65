"""Health checks: whether the process is alive, may get traffic, and should get new connections from a balancer."""

from __future__ import annotations

from backend_store.model import NotFound, PushqError, Unavailable
from gateway.api.http import Answer, encode_json, json_answer, problem_answer
from gateway.context import Gateway
from push.problems import problem
from throttling.admission import Level

CHECKS = ("draining", "disk", "load")


async def livez(gateway: Gateway, query: dict[str, str]) -> Answer:
    """200 while the event loop runs; a restart would help against nothing else."""
    return json_answer({"status": "ok"})


async def readyz(gateway: Gateway, query: dict[str, str]) -> Answer:
    """200 while everything works; 503 while draining, or while publishes are refused for lack of disk or for load.
    `?verbose` lists all checks."""
    failing = _failing(gateway)
    checks = {name: failing[name].detail if name in failing else "ok" for name in CHECKS}
    shown = {"checks": checks} if "verbose" in query else {}
    if failing:
        first = next(iter(failing.values()))
        return problem_answer(first)._replace(body=encode_json({**problem(first), **shown}))
    return json_answer({"status": "ok", **shown})


async def lbz(gateway: Gateway, query: dict[str, str]) -> Answer:
    """For load balancers. 404 while draining: a balancer then sends no new connections and keeps the open ones, which
    503 might cut.

    A full disk and overload do not change it: consumers must continue, because their acks make room, and acks may come
    over new connections. The process refuses by itself what it cannot take.
    """
    if gateway.hub.draining:
        return problem_answer(NotFound("draining: send new connections elsewhere; open ones finish here"))
    return json_answer({"status": "ok"})


def _failing(gateway: Gateway) -> dict[str, PushqError]:
    failing: dict[str, PushqError] = {}
    if gateway.hub.draining:
        failing["draining"] = PushqError("the server is shutting down", code="draining")
    node = gateway.store.node
    if not node.publishes_allowed():
        failing["disk"] = Unavailable(f"publishes are refused, other requests work: {node.why_no_publishes()}")
    if gateway.hub.intake.level >= Level.NO_PUBLISHES:
        failing["load"] = gateway.hub.intake.why_not_ready()
    return failing
