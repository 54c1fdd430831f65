"""`pushq serve`: runs one process that contains everything, from its start to its drain.

Start: settings → port → store → application → ready. SIGTERM: reports not ready, says `bye` to every connection,
finishes answers in progress, closes the store, exits; at most 6 s after `limits.drain_window_s`. A second signal exits
at once.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import structlog
import uvloop
from starlette.types import ASGIApp

from backend_store.client import Metadata, Store, open_store
from backend_store.model import PushqError, Unavailable
from backend_store.remote.store import RemoteBackends
from backend_store.shard.rounds import Patience
from backend_store.storage.engine import ClockAhead, FolderInUse, StorageError
from backend_store.storage.space import SpaceRules
from gateway.admission.dependency_guard import Guards
from gateway.admission.memory import keep_what_is_imported
from gateway.admission.setup import NoRedisLibrary
from gateway.app import Application, create_app
from gateway.clock import wall_clock_ms
from gateway.clusters.backends import open_backends, tls_of
from gateway.clusters.etcd_access import access_of, etcd_config
from gateway.clusters.overview import ClustersView
from gateway.clusters.recovery import Recovery
from gateway.clusters.watch import ClusterWatch
from gateway.config.addresses import EtcdAt, parse_address, parse_etcd
from gateway.config.backend_rules import coordinator_of
from gateway.config.load import Loaded
from gateway.config.settings import ClusterSettings, Settings
from gateway.encryption.data_keys import Vault
from gateway.encryption.master_keys import MASTER_FILE, MasterError
from gateway.encryption.setup import Encrypting, encrypting
from gateway.identity.api_key_upkeep import ApiKeyUpkeep
from gateway.identity.authentication import ADMIN_KEY_FILE, Keyring, make_first_key
from gateway.identity.jwks import BadKeys
from gateway.identity.jwks_refresh import KeySets
from gateway.identity.jwt import Tokens
from gateway.identity.tickets import TicketOffice
from gateway.limits import FAREWELL_SECONDS_MAX, FILES_RESERVED, LISTEN_BACKLOG
from gateway.listener.certificates import CertificateError, OwnCertificates
from gateway.listener.proxy_gate import Entrance, open_entrance
from gateway.listener.server import ADMIN_SOCKET, Listener, bind_tcp, bind_unix, listener
from gateway.listener.unread_body import Bounds
from gateway.metadata.remote_store import RemoteStore, remote_store
from gateway.observability.logs import configure_logs
from gateway.observability.tracing import spans_of
from gateway.processes.sessions import SharedSessions
from gateway.processes.siblings import Siblings
from gateway.processes.tickets import SharedTickets
from gateway.roles.errors import CannotStart, cannot_open, clock_ahead
from gateway.roles.systemd import SIGNALS, tell_ready, tell_stopping
from gateway.version import VERSION

__all__ = ["CannotStart", "serve"]

log = structlog.get_logger("pushq.serve")


def serve(loaded: Loaded) -> None:
    """Serves until a signal ends it. Raises `CannotStart`."""
    if loaded.settings.gateways > 1:
        # Imported here: a single process does not pay for it.
        from gateway.processes.parent import serve_several

        serve_several(loaded.settings)
    else:
        serve_as(loaded.settings, Alone())


def serve_as(settings: Settings, place: Alone) -> None:
    """Serves in this process. Raises `CannotStart`."""
    configure_logs(settings.logs)
    keep_what_is_imported()
    files_max = _raise_open_files_limit()
    uvloop.run(_serve(_within(settings, files_max), place))


class Alone:
    """How a process gets its sockets and its store, and whom it tells that it is ready: here for a process that
    contains everything. `gateway.processes` has the variant for one of several gateways."""

    number = 1
    is_desk = True
    """Whether this process also does what only one process of a server may do, such as series and alerts."""
    siblings: Siblings | None = None

    def bind(self, settings: Settings) -> socket.socket:
        return bind_tcp(settings.address)

    async def open(self, settings: Settings, guards: Guards, own: OwnCertificates) -> tuple[Store, Encrypting]:
        return await _opened(settings, guards, own)

    def tickets(self, store: Store) -> TicketOffice | None:
        """The ticket office to use; None: one in the memory of this process."""
        far = _far(store)
        return None if far is None else SharedTickets(far, wall_clock_ms)

    def front(self, app: Application) -> tuple[ASGIApp, ASGIApp]:
        """The application for the public socket, and the one for local administration."""
        return app, app.local

    def more(self, app: Application, settings: Settings) -> list[tuple[Listener, socket.socket]]:
        """Further listeners, each with its socket."""
        return []

    def local_socket(self, settings: Settings) -> socket.socket:
        return bind_unix(settings.directory)

    def ready(self, settings: Settings, port: int, *, made_master_key: bool, end: Callable[[], None]) -> None:
        """Announces that the server is ready. Called before the first request can be answered: the socket listens
        already, so connections wait in its backlog. `end` drains the process."""
        announce(settings, port, is_new=made_master_key)
        tell_ready()

    async def leave(self, settings: Settings) -> None:
        """Removes the admin socket while this process still holds the folder's lock: the next process makes its own."""
        (settings.directory / ADMIN_SOCKET).unlink(missing_ok=True)


async def _serve(settings: Settings, place: Alone) -> None:
    entrance = _entrance(settings)
    spans = spans_of(settings)
    tcp = _bind(settings, place)
    scrapes = _bind_metrics(settings) if place.is_desk else None
    tokens = _tokens(settings)
    guards, own = Guards(), OwnCertificates()
    if entrance.certificates is not None:
        own.take(entrance.certificates)
    store, encryption = await place.open(settings, guards, own)
    if tokens is not None:
        await tokens.key_sets.start()
    far = _far(store)
    keyring = Keyring(store, tokens=tokens) if far is None else Keyring(store, tokens=tokens, expect=far.expect)
    if not isinstance(store, RemoteStore):
        await make_first_key(keyring, settings.directory)
    cluster = _cluster(settings, own)
    sessions = None if far is None else SharedSessions(far)
    try:
        app = create_app(
            store,
            settings,
            keyring=keyring,
            entrance=entrance,
            guards=guards,
            encryption=encryption,
            spans=spans,
            series_folder=settings.directory if place.is_desk else None,
            cluster=cluster,
            recovery=_recovery(cluster, store, settings, own),
            clusters=_clusters(store, settings),
            further=_further(settings, own),
            tickets=place.tickets(store),
            siblings=place.siblings,
            sessions=sessions,
            number=place.number,
        )
    except NoRedisLibrary as error:
        await store.close([])
        raise CannotStart(str(error)) from None
    care = None
    if isinstance(store, RemoteStore):
        await store.start(app.gateway.hub.queue_deleted)
    else:
        if far is not None:
            far.on_deleted(cast(Any, app.gateway.hub.queue_deleted))
        care = ApiKeyUpkeep(store, keyring, app.gateway.hub.open)
    front, local = place.front(app)
    bounds = Bounds.of(settings.limits)
    public = listener(front, entrance, app.door, bounds, hsts=_wants_hsts(settings))
    more = place.more(app, settings)
    if scrapes is not None:
        more.append((listener(app.metrics_only, door=app.door, bounds=bounds), scrapes))
    server = Server(
        app, [public, listener(local, bounds=bounds), *(each for each, _ in more)], care, own, samples=place.is_desk
    )
    server.handle_signals()
    _listen(tcp, settings)
    if scrapes is not None:
        scrapes.listen(LISTEN_BACKLOG)
    place.ready(settings, tcp.getsockname()[1], made_master_key=encryption.is_new, end=server.end)
    keys = asyncio.create_task(encryption.run(), name="data keys")
    await server.run([tcp, place.local_socket(settings), *(sock for _, sock in more)])
    keys.cancel()
    await asyncio.gather(keys, return_exceptions=True)
    await app.gateway.hub.close()
    await app.gateway.watching.close()
    await app.gateway.usage.close()
    await app.gateway.throttle.limiter.close()
    await app.gateway.once.close()
    if tokens is not None:
        await tokens.key_sets.close()
    if care is not None:
        try:
            await care.write_down()
        except PushqError as error:
            log.warning("key usage times could not be stored", error=error.detail)
    await place.leave(settings)
    if sessions is not None:
        await sessions.leave(app.gateway.hub)
    await store.close(app.gateway.hub.kept_sessions())
    log.info("stopped")


def _far(store: object) -> RemoteBackends | None:
    """The store, if it belongs to other processes; else None."""
    return store if isinstance(store, RemoteBackends) else None


def _cluster(settings: Settings, own: OwnCertificates) -> ClusterWatch | None:
    at = coordinator_of(settings.cluster)
    return None if at is None else _watch(at, settings.cluster, own)


def _further(settings: Settings, own: OwnCertificates) -> dict[str, ClusterWatch]:
    """Watches of further clusters, by cluster name: one for each whose coordinator the settings name."""
    cluster = settings.cluster
    return {
        entry.name: _watch(parse_etcd(entry.coordinator, tls=bool(cluster.etcd_tls_ca)), cluster, own)
        for entry in settings.store.clusters
        if entry.coordinator
    }


def _watch(at: EtcdAt, cluster: ClusterSettings, own: OwnCertificates) -> ClusterWatch:
    patience = Patience(cluster.replace_after_s, cluster.rebalance_after_s)
    return ClusterWatch(etcd_config(at, access_of(cluster), own), patience)


def _clusters(store: Store, settings: Settings) -> ClustersView | None:
    """None unless `store.backends` is set."""
    far = _far(store) if settings.store.backends else None
    return None if far is None else ClustersView(far, wall_clock_ms)


def _recovery(cluster: ClusterWatch | None, store: object, settings: Settings, own: OwnCertificates) -> Recovery | None:
    if cluster is None or not isinstance(store, RemoteBackends):
        return None
    return Recovery(cluster, store, tls_of(settings.store, own))


def _entrance(settings: Settings) -> Entrance:
    try:
        return open_entrance(settings.http)
    except CertificateError as error:
        raise CannotStart(f"cannot use TLS: {error}") from None


def _wants_hsts(settings: Settings) -> bool:
    """Not under `--dev`: a browser would apply it to every other server of this machine, too."""
    return bool(settings.http.tls_cert) and not settings.dev


def _bind(settings: Settings, place: Alone) -> socket.socket:
    try:
        return place.bind(settings)
    except OSError as error:
        raise cannot_listen(settings, error) from None


def _bind_metrics(settings: Settings) -> socket.socket | None:
    """The socket of `metrics.listen`, or None. It speaks plain HTTP and is for a trusted network."""
    if not settings.metrics.listen:
        return None
    try:
        return bind_tcp(parse_address(settings.metrics.listen))
    except OSError as error:
        wanted = settings.metrics.listen
        raise CannotStart(f"cannot listen on {wanted}: {error.strerror}; choose another metrics.listen") from None


def _listen(tcp: socket.socket, settings: Settings) -> None:
    """Listens. Two processes that start together may both bind, but only one of them can listen."""
    try:
        tcp.listen(LISTEN_BACKLOG)
    except OSError as error:
        raise cannot_listen(settings, error) from None


def cannot_listen(settings: Settings, error: OSError) -> CannotStart:
    return CannotStart(f"cannot listen on {settings.http.listen}: {error.strerror}; choose another with --listen")


def _tokens(settings: Settings) -> Tokens | None:
    """The verifier of JWTs; None if no issuer is configured."""
    jwt = settings.auth.jwt
    try:
        return Tokens(jwt, KeySets(jwt)) if jwt.issuers else None
    except BadKeys as error:
        raise CannotStart(f"auth.jwt.issuers: {error}") from None


async def _opened(settings: Settings, guards: Guards, own: OwnCertificates) -> tuple[Store, Encrypting]:
    """Opens the store of the data folder, or connects to the backends in `store.backends`."""
    if settings.store.backends:
        backends, encryption = await open_backends(settings, guards, own)
        return cast(Store, backends), encryption
    folder, encryption = await _open(settings, guards)
    return await _defined(folder, settings, guards, own), encryption


async def _defined(store: Store, settings: Settings, guards: Guards, own: OwnCertificates) -> Store:
    """The store; with `metadata.url`, one whose queues, keys and tenants come from the metadata service."""
    if settings.metadata.url:
        try:
            return remote_store(store, settings, guards, own)
        except OSError as error:
            await store.close()
            raise CannotStart(f"cannot read the secret in {settings.metadata.secret_file}: {error.strerror}") from None
    if store.node.metadata.adopted_from is not None:
        await store.close()
        raise CannotStart(
            f"the queues in {settings.data} belong to a metadata service: set metadata.url, or choose another folder "
            "with --data"
        )
    return store


async def _open(settings: Settings, guards: Guards) -> tuple[Store, Encrypting]:
    made: list[Encrypting] = []

    async def make(metadata: Metadata) -> Vault:
        made.append(await encrypting(metadata, settings, guards, clock_ms=wall_clock_ms))
        return made[0].vault

    kept = settings.storage
    space = SpaceRules(kept.publish_stop_percent / 100, kept.ballast_bytes or None)
    try:
        days_max = kept.clock_jump_days_max
        return await open_store(settings.directory, make, space, clock_jump_days_max=days_max), made[0]
    except (MasterError, Unavailable) as error:
        raise CannotStart(f"cannot read the messages of {settings.data}: {error}") from None
    except FolderInUse as error:
        raise CannotStart(f"{error}; stop it, or choose another folder with --data") from None
    except ClockAhead as error:
        raise clock_ahead(settings.data, str(error), error.days) from None
    except (StorageError, OSError) as error:
        raise cannot_open(settings.data, error) from error


@dataclass(slots=True)
class Server:
    """The listeners and background tasks of this process: runs them, and ends them with a drain."""

    app: Application
    listeners: list[Listener]
    care: ApiKeyUpkeep | None
    """None if a metadata service holds the keys."""
    certificates: OwnCertificates
    samples: bool = True
    """Whether this process samples the queues for series and alerts."""
    _draining: asyncio.Task[None] | None = None

    async def run(self, sockets: list[socket.socket]) -> None:
        """Serves one socket per listener until all listeners have ended."""
        async with asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(self.app.lag.watch(), name="loop lag"),
                tasks.create_task(self.app.overload.watch(), name="overload"),
                *([tasks.create_task(self.care.watch(), name="keys")] if self.care is not None else []),
                tasks.create_task(self.app.stored.watch(), name="stored quotas"),
                tasks.create_task(self.app.gateway.begun.watch(), name="begun jobs"),
                tasks.create_task(self.certificates.watch(), name="certificates"),
                *([tasks.create_task(self.app.gateway.sampler.run(), name="series")] if self.samples else []),
            ]
            gateway = self.app.gateway
            clusters = [] if gateway.cluster is None else [gateway.cluster]
            clusters += gateway.further.values()
            watches += [tasks.create_task(cluster.run(), name="cluster") for cluster in clusters]
            serving = [
                tasks.create_task(each.serve(sockets=[sock]), name="listener")
                for each, sock in zip(self.listeners, sockets, strict=True)
            ]
            tasks.create_task(self.app.gateway.usage.run(), name="usage")
            await asyncio.wait(serving)
            self.app.gateway.usage.stop()
            for watch in watches:
                watch.cancel()

    def handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        if self.certificates:
            loop.add_signal_handler(signal.SIGHUP, self.certificates.reload_soon)

    def _signalled(self, number: int) -> None:
        if self._draining is not None:
            # A second signal means: do not wait. What was confirmed is on the disk.
            os._exit(128 + number)
        log.info("draining", signal=signal.Signals(number).name)
        tell_stopping()
        self.end()

    def end(self) -> None:
        """Starts the drain; `run` returns when it is done. Does nothing if a drain is under way."""
        if self._draining is not None:
            return
        self.app.gateway.hub.draining = True
        self._draining = asyncio.create_task(self._drain(), name="drain")

    async def _drain(self) -> None:
        try:
            window_s = self.app.gateway.settings.limits.drain_window_s
            async with asyncio.timeout(window_s + FAREWELL_SECONDS_MAX):
                await self.app.gateway.hub.drain()
        except TimeoutError:
            log.warning("drain took too long: closing the remaining connections")
        finally:
            for each in self.listeners:
                each.should_exit = True


def _raise_open_files_limit() -> int:
    """Raises the soft limit of open files to the hard one and returns it. A socket is a file: the usual soft limit of
    1,024 is too low, and the hard limit is what the operator allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _within(settings: Settings, files_max: int) -> Settings:
    """Lowers `connections_max` to what the limit of open files allows: a refusal with a reason is better than an accept
    that fails."""
    wanted, possible = settings.limits.connections_max, max(1, files_max - FILES_RESERVED)
    if wanted <= possible or files_max == resource.RLIM_INFINITY:
        return settings
    log.debug("the limit of open files lowers connections_max", wanted=wanted, connections_max=possible)
    limits = msgspec.structs.replace(settings.limits, connections_max=possible)
    return msgspec.structs.replace(settings, limits=limits)


def _age_seconds() -> float:
    """Seconds since this process began: the interpreter's start and the imports count as start-up time."""
    with open("/proc/self/stat") as stat:
        started_ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def _where_keys_are(settings: Settings, key_file: Path | None) -> str:
    if settings.metadata.url:
        return f"  key   of the metadata service at {settings.metadata.url}"
    if settings.store.backends and key_file is None:
        return "  key   created by the first gateway of these backends"
    return (
        f"  key   in {key_file}" if key_file else f"  key   {settings.data}/admin.key was removed; its key still works"
    )


def announce(settings: Settings, port: int, *, is_new: bool) -> None:
    """Prints on stdout what a person needs next. The key itself is never printed."""
    url = settings.url(port)
    path = settings.directory / ADMIN_KEY_FILE
    key_file = path if path.exists() else None
    count = settings.gateways
    processes = "one process" if count == 1 else f"{count} gateway processes and one storage process"
    backends = settings.store.backends
    others = [one.name for one in settings.store.clusters]
    further = f", further clusters {', '.join(others)}" if others else ""
    data = f"messages stored by {', '.join(backends)}{further}" if backends else f"data in {settings.data}"
    lines = [
        f"pushq {VERSION}  {processes}, {data}"
        + ("" if settings.metadata.url or backends else ", no other service needed"),
        f"  API   {url}/v1",
        *([f"  demo  {url}/demo"] if settings.dev else []),
        f"  docs  {url}/docs",
        _where_keys_are(settings, key_file),
        *([f"  Keep a copy of {settings.data}/{MASTER_FILE}: messages cannot be read without it."] if is_new else []),
        *(["  --dev: any page on this machine may connect. Not for production."] if settings.dev else []),
        f"ready in {_age_seconds():.1f} s",
    ]
    print("\n".join(lines), file=sys.stdout, flush=True)
