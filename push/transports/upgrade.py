"""The ASGI application behind `/v1/ws`: decides whether a client gets its WebSocket, in which encoding, and as which
principal."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from backend_store.model import Forbidden, PushqError, Unauthenticated
from push.delivery.hub import Hub
from push.delivery.lookup_retry import LookingUp, found
from push.encoding.deliveries import encode
from push.ports import Encoding, Principal
from push.problems import problem, retry_after
from push.protocol import SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK
from push.session.close_codes import Close
from push.session.credentials import close_for
from push.session.session import Session
from push.transports.websocket import EXTENSION, PushProtocol
from throttling.census import Who


def endpoint(hub: Hub) -> ASGIApp:
    """The application behind `/v1/ws`."""

    async def websocket(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = Headers(scope=scope)
        refusal = _refusal(hub, headers)
        if refusal is not None:
            await _refuse(send, refusal)
            return
        encoding, subprotocol = _choose(scope["subprotocols"])
        client = scope.get("client")
        who = Who(address=client[0] if client else "")
        # A header is checked first: a client with a valid one is not counted as unauthenticated. Checking a ticket
        # spends it.
        is_shown = "authorization" in headers
        if not is_shown and (refusal := hub.intake.refusal_by_pace(who)) is not None:
            await _refuse(send, refusal)
            return
        principal, error = await _identified(hub, scope, headers)
        if is_shown and (refusal := hub.intake.refusal_by_pace(_account(who, principal))) is not None:
            await _refuse(send, refusal)
            return
        await send({"type": "websocket.accept", "subprotocol": subprotocol})
        protocol: PushProtocol = scope["extensions"][EXTENSION]
        session = Session(hub, protocol, encoding, principal, who.address)
        if error is not None:
            protocol.send_frame(encode({"type": "error", "problem": problem(error)}, encoding), encoding)
            protocol.close(close_for(error), error.detail)
            return
        try:
            hub.throttle.enter("connections", session.who)
        except PushqError as full:
            protocol.send_frame(encode({"type": "error", "problem": problem(full)}, encoding), encoding)
            protocol.close(Close.RATE_LIMITED, full.detail)
            return
        hub.accepted(session)
        protocol.attach(session)

    return websocket


def _account(who: Who, principal: Principal | None) -> Who:
    return who if principal is None else who._replace(tenant=principal.tenant, principal=principal.id)


def _refusal(hub: Hub, headers: Headers) -> PushqError | None:
    """The refusals before the upgrade and before authentication: a page of another origin, or an overload."""
    origin = headers.get("origin")
    if not hub.desk.allowed_origin(origin, headers.get("host")):
        return Forbidden(f"origin {origin!r} is not allowed: add it to http.allowed_origins")
    return hub.refusal()


async def _refuse(send: Send, error: PushqError) -> None:
    body = problem(error)
    headers = [(b"content-type", b"application/problem+json")]
    if (retry_ms := retry_after(error)) is not None:
        headers.append((b"retry-after", str(max(1, -(-retry_ms // 1000))).encode()))
    await send({"type": "websocket.http.response.start", "status": body["status"], "headers": headers})
    await send({"type": "websocket.http.response.body", "body": encode(body, "json")})


def _choose(offered: list[str]) -> tuple[Encoding, str | None]:
    """The first offered subprotocol that we speak; JSON without a name if there is none."""
    for name in offered:
        if name == SUBPROTOCOL_JSON:
            return "json", name
        if name == SUBPROTOCOL_MSGPACK:
            return "msgpack", name
    return "json", None


async def _identified(hub: Hub, scope: Scope, headers: Headers) -> tuple[Principal | None, PushqError | None]:
    try:
        return await found(lambda: _identity(hub, scope, headers))
    except PushqError as error:
        return None, error


def _identity(hub: Hub, scope: Scope, headers: Headers) -> tuple[Principal | None, PushqError | None]:
    """The principal of a credential in the upgrade itself: a header, or a one-use ticket. The error of a wrong one is
    sent after the accept."""
    try:
        authorization = headers.get("authorization")
        if authorization is not None:
            kind, _, token = authorization.partition(" ")
            if kind.lower() != "bearer":
                raise Unauthenticated("Authorization must be `Bearer <key>`")
            return hub.desk.identify(token.strip()), None
        tickets = parse_qs(scope["query_string"].decode("latin-1")).get("ticket")
        return (hub.desk.redeem(tickets[0]), None) if tickets else (None, None)
    except LookingUp:
        raise
    except PushqError as error:
        return None, error
