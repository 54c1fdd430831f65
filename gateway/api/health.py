"""Health: is the process alive, may it get traffic, should a balancer send it new connections."""

from __future__ import annotations

from backend_store.model import NotFound, PushqError, Unavailable
from gateway.context import Gateway
from gateway.http import Answer, json_answer, problem_answer
from throttling.admission import Level

CHECKS = ("draining", "disk", "load")


async def livez(gateway: Gateway, query: dict[str, str]) -> Answer:
    """The event loop turns: that is all a restart could mend."""
    return json_answer({"status": "ok"})


async def readyz(gateway: Gateway, query: dict[str, str]) -> Answer:
    """200 while everything works, 503 while draining or while publishes are refused for want of disk or memory."""
    failing = _failing(gateway)
    if failing:
        return problem_answer(next(iter(failing.values())))
    checks = {"checks": dict.fromkeys(CHECKS, "ok")} if "verbose" in query else {}
    return json_answer({"status": "ok", **checks})


async def lbz(gateway: Gateway, query: dict[str, str]) -> Answer:
    """For balancers. 404 asks for no new connections and keeps the open ones, which 503 might cut.

    Neither a full disk nor overload is a reason for either: consumers must go on, for what they settle makes room, and
    their acks may come by new connections. What the process cannot take it refuses by itself.
    """
    if gateway.hub.draining:
        return problem_answer(NotFound("draining: send new connections elsewhere, open ones finish here"))
    return json_answer({"status": "ok"})


def _failing(gateway: Gateway) -> dict[str, PushqError]:
    failing: dict[str, PushqError] = {}
    if gateway.hub.draining:
        failing["draining"] = PushqError("the server is shutting down", code="draining")
    node = gateway.store.node
    if not node.publishes_allowed():
        failing["disk"] = Unavailable(f"publishes are refused, all else goes on: {node.why_no_publishes()}")
    if gateway.hub.intake.level >= Level.NO_PUBLISHES:
        failing["load"] = gateway.hub.intake.why_not_ready()
    return failing
