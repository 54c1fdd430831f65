"""`pushq serve`: one process with everything in it, from its start to its drain.

Start: settings → port → store → application → ready. SIGTERM: not ready, farewells, answers under way, store, exit; the
whole within ten seconds. A second signal leaves at once.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
import uvloop

from backend_store.client import Metadata, Store, open_store
from backend_store.model import Unavailable
from backend_store.storage.engine import FolderInUse, StorageError
from gateway.app import Application, create_app
from gateway.auth import ADMIN_KEY_FILE, Keyring, make_first_key, wall_clock_ms
from gateway.certificates import CertificateError
from gateway.config import Loaded
from gateway.encryption import Encrypting, encrypting
from gateway.entrance import Entrance, open_entrance
from gateway.guard import Guards
from gateway.jwks import BadKeys
from gateway.key_care import KeyCare
from gateway.key_sets import KeySets
from gateway.keys import Vault
from gateway.limits import FAREWELL_SECONDS_MAX, FILES_RESERVED, LISTEN_BACKLOG
from gateway.limits_setup import NoRedisLibrary
from gateway.listeners import ADMIN_SOCKET, Listener, bind_tcp, bind_unix, listener
from gateway.logs import configure_logs
from gateway.masters import MASTER_FILE, MasterError
from gateway.remote_store import RemoteStore, remote_store
from gateway.settings import Settings
from gateway.tokens import Tokens
from gateway.version import VERSION

if TYPE_CHECKING:
    from push.spans import Spans

log = structlog.get_logger("pushq.serve")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotStart(Exception):
    """Why the process ends with code 3 before it serves anything, and what to do about it."""


def serve(loaded: Loaded) -> None:
    """Serves until a signal ends it. Raises `CannotStart`."""
    configure_logs(loaded.settings.logs)
    files_max = _raise_open_files_limit()
    uvloop.run(_serve(_within(loaded.settings, files_max)))


async def _serve(settings: Settings) -> None:
    entrance = _entrance(settings)
    spans = _spans(settings)
    tcp = _bind(settings)
    tokens = _tokens(settings)
    guards = Guards()
    folder, encryption = await _open(settings, guards)
    store = await _defined(folder, settings, guards)
    if tokens is not None:
        await tokens.key_sets.start()
    keyring = Keyring(store, tokens=tokens)
    is_remote = isinstance(store, RemoteStore)
    key_file = settings.directory / ADMIN_KEY_FILE if is_remote else await make_first_key(keyring, settings.directory)
    try:
        app = create_app(
            store, settings, keyring=keyring, entrance=entrance, guards=guards, encryption=encryption, spans=spans
        )
    except NoRedisLibrary as error:
        await store.close([])
        raise CannotStart(str(error)) from None
    care = None
    if isinstance(store, RemoteStore):
        await store.start(app.gateway.hub.queue_deleted)
    else:
        care = KeyCare(store, keyring, app.gateway.hub.open)
    public = listener(app, entrance, app.door, hsts=_wants_hsts(settings))
    server = Server(app, [public, listener(app.local)], care)
    server.handle_signals()
    _listen(tcp, settings)
    # Said before the first request can be answered, and true already: from here on connections wait for us.
    _announce(settings, key_file if key_file.exists() else None, tcp.getsockname()[1], is_new=encryption.is_new)
    keys = asyncio.create_task(encryption.run(), name="data keys")
    await server.run([tcp, bind_unix(settings.directory)])
    keys.cancel()
    await asyncio.gather(keys, return_exceptions=True)
    await app.gateway.hub.close()
    await app.gateway.usage.close()
    await app.gateway.throttle.limiter.close()
    await app.gateway.once.close()
    if tokens is not None:
        await tokens.key_sets.close()
    if care is not None:
        await care.write_down()
    # While the folder is still ours: the next process makes a socket of its own there.
    (settings.directory / ADMIN_SOCKET).unlink(missing_ok=True)
    await store.close(app.gateway.hub.kept_sessions())
    log.info("stopped")


def _entrance(settings: Settings) -> Entrance:
    try:
        return open_entrance(settings.http)
    except CertificateError as error:
        raise CannotStart(f"cannot speak TLS: {error}") from None


def _spans(settings: Settings) -> Spans | None:
    """What makes spans; None where nobody wants them."""
    if not settings.tracing.spans:
        return None
    try:
        # Only who wants spans pays for the import.
        from push.spans import Spans
    except ImportError as error:
        detail = f"tracing.spans is true, which needs {error.name}: pip install 'pushq[otel]'"
        raise CannotStart(detail) from None
    spans = Spans()
    if not spans.are_kept:
        log.warning(
            "nobody takes the spans", advice="start with opentelemetry-instrument, or set tracing.spans = false"
        )
    return spans


def _wants_hsts(settings: Settings) -> bool:
    """A browser would remember it for every other server of this machine, too."""
    return bool(settings.http.tls_cert) and not settings.dev


def _bind(settings: Settings) -> socket.socket:
    try:
        return bind_tcp(settings.address)
    except OSError as error:
        raise _cannot_listen(settings, error) from None


def _listen(tcp: socket.socket, settings: Settings) -> None:
    """Two processes that start together may both bind; only one of them may listen."""
    try:
        tcp.listen(LISTEN_BACKLOG)
    except OSError as error:
        raise _cannot_listen(settings, error) from None


def _cannot_listen(settings: Settings, error: OSError) -> CannotStart:
    return CannotStart(f"cannot listen on {settings.http.listen}: {error.strerror}; choose another with --listen")


def _tokens(settings: Settings) -> Tokens | None:
    """What verifies JWTs; None where no issuer is named."""
    jwt = settings.auth.jwt
    try:
        return Tokens(jwt, KeySets(jwt)) if jwt.issuers else None
    except BadKeys as error:
        raise CannotStart(f"auth.jwt.issuers: {error}") from None


async def _defined(store: Store, settings: Settings, guards: Guards) -> Store:
    """The store with the queues, keys and tenants of a metadata service, where the settings name one."""
    if settings.metadata.url:
        try:
            return remote_store(store, settings, guards)
        except OSError as error:
            await store.close()
            raise CannotStart(f"cannot read the secret in {settings.metadata.secret_file}: {error.strerror}") from None
    if store.node.metadata.adopted_from is not None:
        await store.close()
        raise CannotStart(
            f"the queues in {settings.data} belong to a metadata service: name it as metadata.url, "
            "or choose another folder with --data"
        )
    return store


async def _open(settings: Settings, guards: Guards) -> tuple[Store, Encrypting]:
    made: list[Encrypting] = []

    async def make(metadata: Metadata) -> Vault:
        made.append(await encrypting(metadata, settings, guards, clock_ms=wall_clock_ms))
        return made[0].vault

    try:
        return await open_store(settings.directory, make), made[0]
    except (MasterError, Unavailable) as error:
        raise CannotStart(f"cannot read the messages of {settings.data}: {error}") from None
    except FolderInUse as error:
        raise CannotStart(f"{error}; stop it, or choose another folder with --data") from None
    except (StorageError, OSError) as error:
        raise CannotStart(f"cannot open the data folder {settings.data}: {error}") from error


@dataclass(slots=True)
class Server:
    """The listeners, and how they end."""

    app: Application
    listeners: list[Listener]
    care: KeyCare | None
    """None where a metadata service has the keys."""
    _draining: asyncio.Task[None] | None = None

    async def run(self, sockets: list[socket.socket]) -> None:
        """Serves one socket with each listener until all of them have ended."""
        async with asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(self.app.lag.watch(), name="loop lag"),
                tasks.create_task(self.app.overload.watch(), name="overload"),
                *([tasks.create_task(self.care.watch(), name="keys")] if self.care is not None else []),
                tasks.create_task(self.app.stored.watch(), name="stored quotas"),
            ]
            if (certificates := self.app.entrance.certificates) is not None:
                watches.append(tasks.create_task(certificates.watch(), name="certificates"))
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
        if (certificates := self.app.entrance.certificates) is not None:
            loop.add_signal_handler(signal.SIGHUP, certificates.reload_soon)

    def _signalled(self, number: int) -> None:
        if self._draining is not None:
            # Whoever signals twice does not want to wait; what was confirmed is on the disk.
            os._exit(128 + number)
        log.info("draining", signal=signal.Signals(number).name)
        self.app.gateway.hub.draining = True
        self._draining = asyncio.create_task(self._drain(), name="drain")

    async def _drain(self) -> None:
        try:
            window_s = self.app.gateway.settings.limits.drain_window_s
            async with asyncio.timeout(window_s + FAREWELL_SECONDS_MAX):
                await self.app.gateway.hub.drain()
        except TimeoutError:
            log.warning("drain took too long: the rest is cut")
        finally:
            for each in self.listeners:
                each.should_exit = True


def _raise_open_files_limit() -> int:
    """A socket is a file; the soft limit of 1,024 is history, the hard one is the operator's word."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _within(settings: Settings, files_max: int) -> Settings:
    """Fewer connections where the system allows fewer files: better refused by us than by an accept that fails."""
    wanted, possible = settings.limits.connections_max, max(1, files_max - FILES_RESERVED)
    if wanted <= possible or files_max == resource.RLIM_INFINITY:
        return settings
    log.debug("the limit of open files lowers connections_max", wanted=wanted, connections_max=possible)
    limits = msgspec.structs.replace(settings.limits, connections_max=possible)
    return msgspec.structs.replace(settings, limits=limits)


def _age_seconds() -> float:
    """How long this process has lived: the interpreter's start and the imports are part of a start."""
    with open("/proc/self/stat") as stat:
        started_ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def _where_keys_are(settings: Settings, key_file: Path | None) -> str:
    if settings.metadata.url:
        return f"  key   of the metadata service at {settings.metadata.url}"
    return f"  key   in {key_file}" if key_file else f"  key   {settings.data}/admin.key is gone; its key is still good"


def _announce(settings: Settings, key_file: Path | None, port: int, *, is_new: bool) -> None:
    """What a person needs to go on, on stdout. The key itself is never printed."""
    url = settings.url(port)
    lines = [
        f"pushq {VERSION}  one process, data in {settings.data}"
        + ("" if settings.metadata.url else ", nothing else needed"),
        f"  API   {url}/v1",
        *([f"  demo  {url}/demo"] if settings.dev else []),
        f"  docs  {url}/docs",
        _where_keys_are(settings, key_file),
        *([f"  Keep a copy of {settings.data}/{MASTER_FILE}: without it no message can be read."] if is_new else []),
        *(["  --dev: any page of this machine may connect. Not for production."] if settings.dev else []),
        f"ready in {_age_seconds():.1f} s",
    ]
    print("\n".join(lines), file=sys.stdout, flush=True)
