"""`pushq metadata`: the role that stores queue definitions, API keys and tenants for gateways in other processes."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from pathlib import Path
from typing import cast

import structlog

from backend_store.client import Store
from backend_store.metadata.host import SECRET_FILE, MetadataHost, open_host, secret_of
from backend_store.metadata.server import Pages
from backend_store.storage.engine import FolderInUse, StorageError
from backend_store.tracing import Tracer
from gateway.admission.loop_lag import LoopLag
from gateway.config.settings import Settings
from gateway.identity.authentication import Keyring, make_first_key
from gateway.listener.certificates import OwnCertificates, watched
from gateway.observability.logs import configure_logs
from gateway.observability.metrics.metadata import Health, of_folder, pages
from gateway.observability.tracing import spans_of
from gateway.roles.errors import CannotStart, cannot_open
from gateway.roles.metadata_listener import Listening, check_listening, tls_of_server
from gateway.roles.systemd import SIGNALS, tell_ready, tell_stopping
from gateway.version import VERSION

log = structlog.get_logger("pushq.metadata")


def serve_metadata_role(directory: Path, listening: Listening, settings: Settings) -> None:
    """Serves until a signal ends it. Uses only the settings of logs and spans. Raises `CannotStart`."""
    check_listening(listening, is_told=False)
    configure_logs(settings.logs)
    asyncio.run(_serve(directory, listening, spans_of(settings)))


async def _serve(directory: Path, listening: Listening, tracer: Tracer | None) -> None:
    own = OwnCertificates()
    tls = tls_of_server(listening.files, own)
    async with watched(own):
        await _serve_by(tls, directory, listening, tracer)


async def _serve_by(tls: ssl.SSLContext | None, directory: Path, listening: Listening, tracer: Tracer | None) -> None:
    address = listening.address
    host = await _open(directory)
    lag = LoopLag()
    watching = asyncio.create_task(lag.watch(), name="loop lag")
    try:
        # A keyring uses only its store's metadata, which is all that this process has.
        key_file = await make_first_key(Keyring(cast(Store, host)), directory)
        try:
            port = await host.listen(
                secret_of(directory), *address, _pages(host, lag), tracer, zone=listening.zone, tls=tls
            )
        except OSError as error:
            detail = f"cannot listen on {address.host}:{address.port}: {error.strerror}; choose another with --listen"
            raise CannotStart(detail) from None
        ended = asyncio.Event()
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, _end, number, ended)
        url = listening.url(port)
        _announce(directory, url, key_file)
        log.info("serves the metadata", address=url)
        await ended.wait()
    finally:
        watching.cancel()
        await host.close()
    log.info("stopped")


def _pages(host: MetadataHost, lag: LoopLag) -> Pages:
    health = Health("metadata", "ok", "alone")
    return pages(host.traffic, lag, lambda: of_folder(host), lambda: health)


def _end(number: int, ended: asyncio.Event) -> None:
    log.info("stopping", signal=signal.Signals(number).name)
    tell_stopping()
    ended.set()


async def _open(directory: Path) -> MetadataHost:
    try:
        return await open_host(directory)
    except FolderInUse as error:
        raise CannotStart(f"{error}; stop it, or choose another folder with --data") from None
    except (StorageError, OSError) as error:
        raise cannot_open(directory, error) from error


def _announce(directory: Path, url: str, key_file: Path) -> None:
    lines = [
        f"pushq {VERSION}  metadata service, data in {directory}",
        f"  url     {url}",
        f"  health  {url.replace('ws', 'http', 1)}/health",
        f"  secret  in {directory / SECRET_FILE}",
        f"  key     in {key_file}" if key_file.exists() else f"  key     {key_file} was removed; its key still works",
        "ready",
    ]
    print("\n".join(lines), file=sys.stdout, flush=True)
    tell_ready()
