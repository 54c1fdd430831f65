"""`pushq manager`: the role that watches all clusters, decides which may take queues, and requests servers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from functools import partial
from http import HTTPStatus

import msgspec
import structlog

from backend_store.core.outer.managing import Rules
from backend_store.model import Unavailable
from backend_store.outer.manager import Manager
from backend_store.remote.store import RemoteBackends
from backend_store.shard.health import JSON, Answer, Pages, serve_pages
from gateway.admission.loop_lag import LoopLag
from gateway.clusters.backends import backends_of
from gateway.clusters.provisioner import provisioner_of
from gateway.config.addresses import Address, parse_address
from gateway.config.settings import Settings
from gateway.listener.certificates import OwnCertificates, watched
from gateway.observability.logs import configure_logs
from gateway.observability.metrics.manager import page
from gateway.observability.tracing import spans_of
from gateway.roles.errors import CannotStart
from gateway.roles.systemd import SIGNALS, tell_ready, tell_stopping
from gateway.version import VERSION

log = structlog.get_logger("pushq.manager")


class Health(msgspec.Struct, frozen=True):
    """The answer of `/health`."""

    manager: str
    status: str
    """"ok", or "stalled" while the home cluster does not answer."""
    is_manager: bool
    """Whether this manager is the active one."""
    clusters: tuple[str, ...]
    """The clusters in the settings."""
    calls: int
    """Calls to the provisioner in progress."""


def serve_manager_role(settings: Settings) -> None:
    """Serves until a signal ends it. Raises `CannotStart`."""
    if not settings.store.backends:
        raise CannotStart("store.backends is missing: a manager stores its state with the backends of the home cluster")
    configure_logs(settings.logs)
    asyncio.run(_serve(settings))
    log.info("stopped")


async def _serve(settings: Settings) -> None:
    ended = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, _end, number, ended)
    own = OwnCertificates()
    store = backends_of(settings, own)
    lag = LoopLag()
    watching = asyncio.create_task(lag.watch(), name="loop lag")
    try:
        if not await _open(store, settings, ended):
            return
        manager = _manager(store, settings)
        pages: Pages = {b"/health": partial(_health, manager), b"/metrics": page(manager, lag)}
        http = parse_address(settings.manager.listen)
        try:
            server = await serve_pages(pages, http.host, http.port)
        except OSError as error:
            detail = f"manager.listen: cannot listen on {settings.manager.listen}: {error.strerror}"
            raise CannotStart(detail) from None
        try:
            async with watched(own):
                _announce(manager, http._replace(port=server.sockets[0].getsockname()[1]))
                await _run(manager, ended)
        finally:
            server.close()
            await server.wait_closed()
    finally:
        watching.cancel()
        await store.close()


async def _run(manager: Manager, ended: asyncio.Event) -> None:
    """Runs the manager until a signal or a bug ends it; another manager then takes over."""
    looking = asyncio.create_task(manager.run(), name="manager")
    ending = asyncio.create_task(ended.wait(), name="signals")
    try:
        await asyncio.wait((looking, ending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_fault = looking.done()
        for task in (looking, ending):
            task.cancel()
        await asyncio.gather(looking, ending, return_exceptions=True)
        await manager.leave()
    if is_fault:
        looking.result()


def _manager(store: RemoteBackends, settings: Settings) -> Manager:
    given = settings.manager
    rules = Rules(
        nodes_min=given.nodes_min,
        nodes_max=given.nodes_max,
        grow_after_ms=given.grow_after_s * 1000,
        shrink_after_ms=given.shrink_after_s * 1000,
        pause_ms=given.pause_s * 1000,
        call_ms_max=given.provisioner_timeout_s * 1000,
        has_provisioner=bool(given.provisioner),
        moves_queues=given.relief == "move",
    )
    name = given.name or f"{socket.gethostname()}:{os.getpid()}"
    return Manager(
        store,
        rules,
        provisioner_of(given),
        name=name,
        every_s=given.look_s,
        tracer=spans_of(settings),
    )


async def _open(store: RemoteBackends, settings: Settings, ended: asyncio.Event) -> bool:
    """Opens the store. False if a signal came first. Raises `CannotStart`."""
    opening = asyncio.create_task(store.open(), name="opens")
    ending = asyncio.create_task(ended.wait(), name="signals")
    try:
        await asyncio.wait((opening, ending), return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            return False
        await opening
        return True
    except Unavailable as error:
        named = ", ".join(settings.store.backends)
        raise CannotStart(
            f"cannot start with the backends that store.backends names, {named}: {error.detail}"
        ) from None
    finally:
        for task in (opening, ending):
            task.cancel()
        await asyncio.gather(opening, ending, return_exceptions=True)


def _end(number: int, ended: asyncio.Event) -> None:
    log.info("stopping", signal=signal.Signals(number).name)
    tell_stopping()
    ended.set()


def _health(manager: Manager, accept: str) -> Answer:
    status = "ok" if manager.is_well else "stalled"
    found = Health(manager.name, status, manager.is_acting, tuple(manager.named), manager.under_way)
    code = HTTPStatus.OK if manager.is_well else HTTPStatus.SERVICE_UNAVAILABLE
    return code, JSON, msgspec.json.encode(found)


def _announce(manager: Manager, http: Address) -> None:
    lines = [f"pushq {VERSION}  manager {manager.name}", f"  health  {http.url}/health", "ready"]
    print("\n".join(lines), file=sys.stdout, flush=True)
    tell_ready()
