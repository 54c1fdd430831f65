"""HTTP handler for tickets: exchanges a credential for a one-time ticket that a browser may put into a URL."""

from __future__ import annotations

from dataclasses import replace

from backend_store.client import timestamp
from backend_store.model import Forbidden
from gateway.api.http import Answer, Call, json_answer
from gateway.api.shapes.bodies import TicketBody, TicketView
from gateway.context import Gateway
from gateway.identity.authentication import Principal
from gateway.identity.authorization import VERBS, Access, check_scopes


async def issue(gateway: Gateway, call: Call) -> Answer:
    """Issues a ticket, whose access never exceeds that of the credential that asked for it."""
    wanted: TicketBody = await call.fields(TicketBody)
    principal = call.principal
    if wanted.queue is not None:
        gateway.store.queue(principal.tenant, wanted.queue)
        if not any(principal.access.may(verb, wanted.queue) for verb in VERBS):
            raise Forbidden(f"the key {principal.name!r} has no scope for queue {wanted.queue!r}")
    access = principal.access
    if wanted.queue is not None:
        access = access.narrowed(tuple(f"{verb}:{wanted.queue}" for verb in VERBS))
    if wanted.scopes is not None:
        scopes = check_scopes(wanted.scopes)
        _check_held(principal, access, scopes)
        access = access.narrowed(scopes)
    ticket = await gateway.tickets.hand_out(replace(principal, access=access))
    view = TicketView(ticket.text, timestamp(ticket.expires_at_ms))
    return json_answer(view, 201, ((b"cache-control", b"no-store"),))


def _check_held(principal: Principal, access: Access, scopes: tuple[str, ...]) -> None:
    """Reports early a scope that the caller does not have. A pattern is narrowed to what the caller has, without an
    error."""
    for scope in scopes:
        verb, _, queue = scope.partition(":")
        if verb == "admin":
            is_held = access.is_admin
        elif verb == "operator":
            is_held = access.is_operator
        else:
            is_held = "*" in queue or any(access.may(known, queue) for known in VERBS if known == verb)
        if not is_held:
            raise Forbidden(f"the key {principal.name!r} lacks the scope {scope} and cannot pass it on")
