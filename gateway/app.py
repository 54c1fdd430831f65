"""The gateway as one ASGI application: WebSockets go to `push`, `/v1` to the API, everything else to the site."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from backend_store.client import Store
from backend_store.model import NotFound
from gateway.admission.dependency_guard import Guards
from gateway.admission.loop_lag import LoopLag
from gateway.admission.memory import limit_bytes
from gateway.admission.overload import Overload
from gateway.admission.setup import make_throttle
from gateway.admission.stored_quotas import StoredQuotas
from gateway.alerts.setup import watching
from gateway.api import asyncapi, docs, openapi
from gateway.api.dispatch import LOCAL, Api
from gateway.api.http import problem_answer, write
from gateway.api.site import METRICS, Site
from gateway.clock import wall_clock_ms
from gateway.clusters.overview import ClustersView
from gateway.clusters.recovery import Recovery
from gateway.clusters.watch import ClusterWatch
from gateway.config.settings import Settings
from gateway.console_server import ConsoleServer
from gateway.context import Gateway
from gateway.desk import GatewayDesk
from gateway.encryption.setup import Encrypting
from gateway.identity.authentication import Keyring
from gateway.identity.metrics_access import OPEN
from gateway.identity.revocable_work import RevocableWork
from gateway.identity.tickets import TicketOffice
from gateway.limits import FILES_RESERVED, HTTP_CONNECTIONS_MAX, UNCONFIRMED_MEMORY_FRACTION
from gateway.listener.accept_limit import AcceptLimit
from gateway.listener.proxy_gate import Entrance
from gateway.observability.metrics import gateway as metrics
from gateway.observability.queue_numbers import QueueNumbers
from gateway.processes.sessions import SharedSessions
from gateway.processes.siblings import Siblings
from gateway.publishing.idempotent_publish import IdempotentPublish
from gateway.publishing.shared_reply_cache import RedisReplies
from gateway.queues.auto_create import auto_config
from gateway.series.sampler import Sampler
from gateway.usage.export import Exporter
from gateway.usage.live import LiveUsage
from gateway.usage.meter import Meter
from gateway.version import VERSION
from push.delivery.hub import Hub
from push.intake import Intake
from push.limits import UNCONFIRMED_BYTES_MAX
from push.transports import upgrade
from throttling.limiter import Limiter
from web_console.routes import ConsoleContext, routes

if TYPE_CHECKING:
    from push.spans import Spans

WEBSOCKET_PATH: Final = "/v1/ws"
DEMO_SCOPES: Final = ("publish:demo.*", "consume:demo.*", "view:demo.*", "manage:demo.*")


@dataclass(frozen=True, slots=True)
class Application:
    """The ASGI callable of one process, and the parts of it that `serve` starts, watches and drains."""

    gateway: Gateway
    api: Api
    site: Site
    websocket: ASGIApp
    lag: LoopLag
    entrance: Entrance
    overload: Overload
    door: AcceptLimit
    stored: StoredQuotas

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
        """The same application for `DIR/admin.sock`, which only the folder's owner can open."""
        scope[LOCAL] = True
        await self(scope, receive, send)

    async def metrics_only(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application for `metrics.listen`: serves metrics only, to any client, without credentials."""
        scope[OPEN] = True
        if scope["type"] == "http" and scope["path"] == METRICS:
            await self.site(scope, receive, send)
        elif scope["type"] == "http":
            await write(send, problem_answer(NotFound(f"only {METRICS} is served here")))
        elif scope["type"] == "websocket":
            await _no_socket_here(scope, receive, send)


def create_app(
    store: Store,
    settings: Settings,
    *,
    keyring: Keyring | None = None,
    limiter: Limiter | None = None,
    entrance: Entrance | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
    guards: Guards | None = None,
    encryption: Encrypting | None = None,
    spans: Spans | None = None,
    series_folder: Path | None = None,
    cluster: ClusterWatch | None = None,
    recovery: Recovery | None = None,
    clusters: ClustersView | None = None,
    further: Mapping[str, ClusterWatch] | None = None,
    tickets: TicketOffice | None = None,
    siblings: Siblings | None = None,
    sessions: SharedSessions | None = None,
    number: int = 1,
) -> Application:
    """Assembles the gateway. Must be called on the event loop that will serve it.

    `series_folder`: where series are stored; without one they are lost when the process ends.
    """
    keyring = Keyring(store, clock_ms) if keyring is None else keyring
    tickets = TicketOffice(clock_ms, steady_ms=store.node.steady_ms) if tickets is None else tickets
    guards = Guards() if guards is None else guards
    redis = settings.redis.address()
    once = IdempotentPublish(RedisReplies(redis, guards, identity=store.identity) if redis else None)
    stored = StoredQuotas(store)
    desk = GatewayDesk(
        store,
        keyring,
        tickets,
        allowed_origins=settings.http.allowed_origins,
        dev=settings.dev,
        auto_config=lambda name: auto_config(settings, name),
        once=once,
        full=stored.full,
    )
    usage = Exporter(
        settings.usage_directory,
        store.id,
        ledger=store.ledger,
        audit=store.audit,
        meter=Meter(store.id, clock_ms),
        clock_ms=clock_ms,
        period_ms=settings.usage.period_seconds * 1000,
        bytes_max=settings.usage.bytes_max,
        kept_days=settings.usage.kept_days,
    )

    throttle = make_throttle(store, settings, limiter)
    memory = settings.overload.memory_max_bytes or limit_bytes()
    hub = Hub(
        store,
        desk,
        clock_ms=store.node.steady_ms,
        resume_ms=settings.resume_ms,
        connections_max=settings.limits.connections_max,
        meter=usage.meter,
        throttle=throttle,
        intake=_intake(settings, memory),
        drain_window_s=settings.limits.drain_window_s,
        unread_s=settings.limits.unread_s,
        spans=spans,
        elsewhere=sessions,
    )
    if sessions is not None:
        sessions.give_from(hub)
    hub.publish_ms = settings.dispatch.timeout_ms
    lag = LoopLag()
    entrance = entrance or Entrance()
    sampler = Sampler(store, hub, lag, clock_ms=clock_ms, folder=series_folder)
    watches = watching(
        store,
        settings,
        sampler,
        usage.meter,
        entrance,
        encryption,
        cluster,
        memory_bytes_max=memory,
        clock_ms=clock_ms,
    )
    numbers = QueueNumbers(store)
    sampler.after.append(numbers.hear)
    gateway = Gateway(
        settings,
        store,
        keyring,
        tickets,
        desk,
        hub,
        throttle,
        clock_ms,
        guards,
        once,
        usage,
        sampler,
        watches,
        RevocableWork(keyring),
        numbers,
        encryption,
        cluster,
        LiveUsage(Path(settings.usage.live_dir)) if settings.usage.live_dir else None,
        recovery,
        siblings,
        number,
        clusters,
        further or {},
    )
    api = Api(gateway)
    overload = Overload(store, hub, lag, settings.overload, memory_bytes_max=memory)
    door = AcceptLimit(
        hub.intake,
        connections_max=_connections_max(settings),
        per_address_max=settings.limits.open_per_address_max,
    )
    site = _site(gateway, api, lag, entrance, overload)
    return Application(gateway, api, site, upgrade.endpoint(hub), lag, entrance, overload, door, stored)


def _connections_max(settings: Settings) -> int:
    """Connections of all kinds. Each is an open file, and some files are left for the database and the log."""
    wanted = settings.limits.connections_max + HTTP_CONNECTIONS_MAX
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files_max == resource.RLIM_INFINITY else min(wanted, files_max - FILES_RESERVED // 2)


def _intake(settings: Settings, memory: int) -> Intake:
    """Its bound for unconfirmed bytes has room for at least two requests of the largest size."""
    share = min(UNCONFIRMED_BYTES_MAX, int(memory * UNCONFIRMED_MEMORY_FRACTION))
    limits = settings.limits
    return Intake(
        accepts_per_s=limits.accepts_per_s,
        accepts_burst=limits.accepts_burst,
        unconfirmed_bytes_max=max(share, 2 * limits.request_bytes_max),
    )


def _site(gateway: Gateway, api: Api, lag: LoopLag, entrance: Entrance, overload: Overload) -> Site:
    async def demo_token() -> str:
        return gateway.keyring.temporary(name="demo", scopes=DEMO_SCOPES)

    console = routes(
        ConsoleContext(
            dev=gateway.settings.dev,
            demo_token=demo_token,
            version=VERSION,
            server=ConsoleServer(gateway, api),
        )
    )
    pages = {
        "/openapi.json": openapi.page(),
        "/asyncapi.json": asyncapi.page(),
        **docs.pages(),
    }
    scraped = metrics.page(api.answers, lag, entrance, overload)
    return Site(gateway, scraped, pages, console, api.require_operator)


async def _no_socket_here(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem_answer(NotFound(f"no WebSocket at {scope['path'][:200]!r}, only at {WEBSOCKET_PATH}"))
    await send(
        {
            "type": "websocket.http.response.start",
            "status": answer.status,
            "headers": [(b"content-type", b"application/problem+json")],
        }
    )
    await send({"type": "websocket.http.response.body", "body": answer.body})
