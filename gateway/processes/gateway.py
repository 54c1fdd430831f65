"""One of several gateway processes: shares port and storage with the others, forwards the rest to the first one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, cast

import httpx2
from starlette.types import ASGIApp

from backend_store.client import Store
from backend_store.remote.store import RemoteBackends
from gateway.admission.dependency_guard import Guards
from gateway.app import Application
from gateway.clock import wall_clock_ms
from gateway.clusters.backends import open_storage
from gateway.config.settings import Settings
from gateway.encryption.setup import Encrypting
from gateway.identity.tickets import TicketOffice
from gateway.listener.certificates import OwnCertificates
from gateway.listener.server import Folder, Listener, bind_tcp, bind_unix, listener
from gateway.listener.unread_body import Bounds
from gateway.processes.child import Parent, Spec
from gateway.processes.core import DESK
from gateway.processes.forward import Forwarding, Inner
from gateway.processes.limits import DESK_SECONDS_MAX, SIBLING_SECONDS_MAX
from gateway.processes.siblings import Siblings
from gateway.processes.storage import STORAGE_SOCKET
from gateway.processes.tickets import SharedTickets
from gateway.serve import Alone, serve_as

INNER_URL: Final = "http://pushq"
"""A placeholder: the transport's socket decides where a request goes."""


def serve_gateway(spec: Spec, parent: Parent) -> None:
    """Serves until its parent ends it or is gone, or a signal comes. Raises `CannotStart`."""
    serve_as(spec.settings, OneOfSeveral(spec, parent))


class OneOfSeveral(Alone):
    """How this process gets its sockets and its store; see `Alone`."""

    def __init__(self, spec: Spec, parent: Parent) -> None:
        self.number = spec.number
        self.is_desk = spec.number == DESK
        self._gateways = spec.gateways
        self._admin_fd = spec.admin_fd
        self._parent = parent
        self._folder = Folder(spec.settings.directory)
        self._desk = self._client(DESK, httpx2.Timeout(DESK_SECONDS_MAX, read=None))
        self.siblings = None
        if self.is_desk:
            others = range(DESK + 1, spec.gateways + 1)
            self.siblings = Siblings({number: self._client(number, SIBLING_SECONDS_MAX) for number in others})

    def _client(self, number: int, timeout: float | httpx2.Timeout) -> httpx2.AsyncClient:
        path = str(self._folder.path(_socket_name(number)))
        # The other side could close a kept connection just as a request is sent on it.
        limits = httpx2.Limits(max_keepalive_connections=0)
        transport = httpx2.AsyncHTTPTransport(uds=path, limits=limits)
        return httpx2.AsyncClient(transport=transport, base_url=INNER_URL, timeout=timeout, trust_env=False)

    def bind(self, settings: Settings) -> socket.socket:
        return bind_tcp(settings.address, is_shared=True)

    async def open(self, settings: Settings, guards: Guards, own: OwnCertificates) -> tuple[Store, Encrypting]:
        store, encryption = await open_storage(settings, guards, self._folder.path(STORAGE_SOCKET))
        return cast(Store, store), encryption

    def tickets(self, store: Store) -> TicketOffice | None:
        return SharedTickets(cast(RemoteBackends, store), wall_clock_ms)

    def front(self, app: Application) -> tuple[ASGIApp, ASGIApp]:
        if self.is_desk:
            return app, app.local
        forwarding = Forwarding(app, self._desk)
        return forwarding, forwarding.local

    def more(self, app: Application, settings: Settings) -> list[tuple[Listener, socket.socket]]:
        bound = bind_unix(settings.directory, _socket_name(self.number))
        return [(listener(Inner(app), bounds=Bounds.of(settings.limits)), bound)]

    def local_socket(self, settings: Settings) -> socket.socket:
        return socket.socket(fileno=self._admin_fd)

    def ready(self, settings: Settings, port: int, *, made_master_key: bool, end: Callable[[], None]) -> None:
        self._parent.when_gone(end)
        self._parent.ready(made_master_key=made_master_key)

    async def leave(self, settings: Settings) -> None:
        (settings.directory / _socket_name(self.number)).unlink(missing_ok=True)
        await self._desk.aclose()
        if self.siblings is not None:
            await self.siblings.close()


def _socket_name(number: int) -> str:
    return f"gateway-{number}.sock"
