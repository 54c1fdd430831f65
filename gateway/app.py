"""The gateway as one ASGI application: sockets to push, `/v1` to the API, the rest to the site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from backend_store.client import Store
from backend_store.model import NotFound
from gateway.api import asyncapi, docs, metrics, openapi
from gateway.auth import Keyring, wall_clock_ms
from gateway.auto_create import auto_config
from gateway.config import Settings
from gateway.context import Gateway
from gateway.desk import GatewayDesk
from gateway.dispatch import LOCAL, Api
from gateway.http import problem_answer
from gateway.loop_lag import LoopLag
from gateway.site import Site
from gateway.tickets import TicketOffice
from gateway.version import VERSION
from push.hub import Hub
from push.transports import websocket
from throttling.limiter import MemoryLimiter
from web_console.routes import ConsoleContext, routes

WEBSOCKET_PATH: Final = "/v1/ws"
DEMO_SCOPES: Final = ("publish:demo.*", "consume:demo.*", "view:demo.*", "manage:demo.*")


@dataclass(frozen=True, slots=True)
class Application:
    """The ASGI callable, and what its process must reach: the hub to drain it, the gateway to ask it."""

    gateway: Gateway
    api: Api
    site: Site
    websocket: ASGIApp
    lag: LoopLag

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["type"] == "http":
            if path.startswith("/v1/") or path == "/v1":
                await self.api(scope, receive, send)
            else:
                await self.site(scope, receive, send)
        elif scope["type"] == "websocket":
            await (self.websocket if path == WEBSOCKET_PATH else _no_socket_here)(scope, receive, send)

    async def local(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same application for `DIR/admin.sock`: only the folder's owner gets there."""
        scope[LOCAL] = True
        await self(scope, receive, send)


def create_app(
    store: Store,
    settings: Settings,
    *,
    keyring: Keyring | None = None,
    limiter: MemoryLimiter | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
) -> Application:
    """Puts the gateway together. Must run on the event loop that will serve it."""
    keyring = Keyring(store, clock_ms) if keyring is None else keyring
    tickets = TicketOffice(clock_ms)
    desk = GatewayDesk(
        store,
        keyring,
        tickets,
        allowed_origins=settings.http.allowed_origins,
        dev=settings.dev,
        auto_config=lambda name: auto_config(settings, name),
    )
    hub = Hub(
        store,
        desk,
        clock_ms=store.steady_ms,
        resume_ms=settings.resume_ms,
        connections_max=settings.limits.connections_max,
    )
    gateway = Gateway(
        settings, store, keyring, tickets, desk, hub, MemoryLimiter() if limiter is None else limiter, clock_ms
    )
    api = Api(gateway)
    lag = LoopLag()
    return Application(gateway, api, _site(gateway, api, lag), websocket.endpoint(hub), lag)


def _site(gateway: Gateway, api: Api, lag: LoopLag) -> Site:
    async def demo_token() -> str:
        return gateway.keyring.temporary(name="demo", scopes=DEMO_SCOPES)

    console = routes(ConsoleContext(dev=gateway.settings.dev, demo_token=demo_token, version=VERSION))
    pages = {
        "/metrics": metrics.page(api.answers, lag),
        "/openapi.json": openapi.page(),
        "/asyncapi.json": asyncapi.page(),
        **docs.pages(),
    }
    return Site(gateway, pages, console)


async def _no_socket_here(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem_answer(NotFound(f"there is no WebSocket at {scope['path'][:200]!r}, only at {WEBSOCKET_PATH}"))
    await send(
        {
            "type": "websocket.http.response.start",
            "status": answer.status,
            "headers": [(b"content-type", b"application/problem+json")],
        }
    )
    await send({"type": "websocket.http.response.body", "body": answer.body})
