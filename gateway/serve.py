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

import msgspec
import structlog
import uvloop

from backend_store.client import Store, open_store
from backend_store.storage.engine import FolderInUse, StorageError
from gateway.app import Application, create_app
from gateway.auth import Keyring, make_first_key
from gateway.config import Loaded, Settings
from gateway.limits import ANSWERS_SECONDS_MAX, DRAIN_SECONDS_MAX, FILES_RESERVED, LISTEN_BACKLOG
from gateway.listeners import ADMIN_SOCKET, Listener, bind_tcp, bind_unix, listener
from gateway.logs import configure_logs
from gateway.version import VERSION

log = structlog.get_logger("pushq.serve")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotStart(Exception):
    """Why the process ends with code 3 before it serves anything, and what to do about it."""


def serve(loaded: Loaded) -> None:
    """Serves until a signal ends it. Raises `CannotStart`."""
    configure_logs()
    files_max = _raise_open_files_limit()
    uvloop.run(_serve(_within(loaded.settings, files_max)))


async def _serve(settings: Settings) -> None:
    tcp = _bind(settings)
    store = await _open(settings)
    keyring = Keyring(store)
    key_file = await make_first_key(keyring, settings.directory)
    app = create_app(store, settings, keyring=keyring)
    server = Server(app, [listener(app), listener(app.local)])
    server.handle_signals()
    _listen(tcp, settings)
    # Said before the first request can be answered, and true already: from here on connections wait for us.
    _announce(settings, key_file if key_file.exists() else None, tcp.getsockname()[1])
    await server.run([tcp, bind_unix(settings.directory)])
    await app.gateway.hub.close()
    # While the folder is still ours: the next process makes a socket of its own there.
    (settings.directory / ADMIN_SOCKET).unlink(missing_ok=True)
    await store.close(app.gateway.hub.kept_sessions())
    log.info("stopped")


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


async def _open(settings: Settings) -> Store:
    try:
        return await open_store(settings.directory)
    except FolderInUse as error:
        raise CannotStart(f"{error}; stop it, or choose another folder with --data") from None
    except (StorageError, OSError) as error:
        raise CannotStart(f"cannot open the data folder {settings.data}: {error}") from error


@dataclass(slots=True)
class Server:
    """The listeners, and how they end."""

    app: Application
    listeners: list[Listener]
    _draining: asyncio.Task[None] | None = None

    async def run(self, sockets: list[socket.socket]) -> None:
        """Serves one socket with each listener until all of them have ended."""
        async with asyncio.TaskGroup() as tasks:
            lag = tasks.create_task(self.app.lag.watch(), name="loop lag")
            serving = [
                tasks.create_task(each.serve(sockets=[sock]), name="listener")
                for each, sock in zip(self.listeners, sockets, strict=True)
            ]
            await asyncio.wait(serving)
            lag.cancel()

    def handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: int) -> None:
        if self._draining is not None:
            # Whoever signals twice does not want to wait; what was confirmed is on the disk.
            os._exit(128 + number)
        log.info("draining", signal=signal.Signals(number).name)
        self.app.gateway.hub.draining = True
        self._draining = asyncio.create_task(self._drain(), name="drain")

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_SECONDS_MAX - ANSWERS_SECONDS_MAX):
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


def _announce(settings: Settings, key_file: Path | None, port: int) -> None:
    """What a person needs to go on, on stdout. The key itself is never printed."""
    url = settings.address._replace(port=port).url
    lines = [
        f"pushq {VERSION}  one process, data in {settings.data}, nothing else needed",
        f"  API   {url}/v1",
        *([f"  demo  {url}/demo"] if settings.dev else []),
        f"  docs  {url}/docs",
        f"  key   in {key_file}" if key_file else f"  key   {settings.data}/admin.key is gone; its key is still good",
        *(["  --dev: any page of this machine may connect. Not for production."] if settings.dev else []),
        f"ready in {_age_seconds():.1f} s",
    ]
    print("\n".join(lines), file=sys.stdout, flush=True)
