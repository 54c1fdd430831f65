"""`pushq metadata --etcd`: one host of a metadata service whose records are in etcd."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import structlog

from backend_store.client import Store
from backend_store.cluster.etcd.driver import EtcdConfig, open_etcd
from backend_store.metadata.directory.client import Form
from backend_store.metadata.directory.handing import Handing
from backend_store.metadata.directory.service import DirectoryService, open_directory
from backend_store.metadata.host import SECRET_FILE, secret_of
from backend_store.metadata.server import serve_metadata
from backend_store.metadata.traffic import Traffic
from backend_store.model import ApiKey, PushqError
from backend_store.tracing import Tracer
from gateway.admission.loop_lag import LoopLag
from gateway.clusters.etcd_access import EtcdAccess, etcd_config, wrong_access
from gateway.config.addresses import EtcdAt
from gateway.config.settings import Settings
from gateway.identity.authentication import Keyring, make_first_key
from gateway.listener.certificates import OwnCertificates, watched
from gateway.observability.logs import configure_logs
from gateway.observability.metrics.metadata import health_of_directory, of_directory, pages
from gateway.observability.tracing import spans_of
from gateway.roles.errors import CannotStart
from gateway.roles.metadata_listener import Listening, check_listening, tls_of_client, tls_of_server
from gateway.roles.systemd import SIGNALS, tell_ready, tell_stopping
from gateway.version import VERSION

log = structlog.get_logger("pushq.metadata")


class _Keys:
    """The part of the metadata that making the first key needs: the existing keys, and a way to add one."""

    def __init__(self, service: DirectoryService, keys: Mapping[str, ApiKey]) -> None:
        self.keys = keys
        self._service = service

    async def put_key(self, key: ApiKey) -> None:
        await self._service.put_key(key)


def serve_directory_role(
    directory: Path,
    listening: Listening,
    settings: Settings,
    *,
    endpoints: Sequence[str],
    form: Form,
    host: str,
    secret_file: Path | None,
    access: EtcdAccess,
) -> None:
    """Serves until a signal ends it. Uses only the settings of logs and spans. Raises `CannotStart`."""
    check_listening(listening, is_told=True)
    if (wrong := wrong_access(endpoints, access, lambda field: f"--etcd-{field.replace('_', '-')}")) is not None:
        raise CannotStart(wrong[1])
    configure_logs(settings.logs)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = secret_of(directory) if secret_file is None else secret_file.read_text().strip()
    except OSError as error:
        raise CannotStart(f"cannot read the secret: {error}; set it with --secret-file") from None
    if not secret:
        raise CannotStart(f"the secret in {secret_file} is empty")
    name = host or f"{socket.gethostname()}-{listening.address.port}"
    own_certificates = OwnCertificates()
    etcd = etcd_config(EtcdAt(list(endpoints)), access, own_certificates)
    asyncio.run(_serve(directory, listening, etcd, own_certificates, form, name, secret, spans_of(settings)))


async def _serve(
    directory: Path,
    listening: Listening,
    etcd: EtcdConfig,
    own_certificates: OwnCertificates,
    form: Form,
    name: str,
    secret: str,
    tracer: Tracer | None,
) -> None:
    address = listening.address
    ended = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        tls = tls_of_server(listening.files, own_certificates)
        to_others = tls_of_client(listening.files, own_certificates)
        await stack.enter_async_context(watched(own_certificates))
        try:
            coordinator = await open_etcd(etcd)
            stack.push_async_callback(coordinator.close)
            own = await stack.enter_async_context(
                open_directory(coordinator, host=name, keeps_all=form == "replicated")
            )
            key_file = await _first_key(own, directory)
        except PushqError as error:
            raise CannotStart(f"cannot use etcd at {', '.join(etcd.endpoints)}: {error.detail}") from None
        lag, traffic = LoopLag(), Traffic()
        watching = asyncio.create_task(lag.watch(), name="loop lag")
        stack.callback(watching.cancel)
        service: DirectoryService | Handing = own
        handing: Handing | None = None
        if form == "ring":
            service = handing = Handing(own, secret, to_others)
            stack.push_async_callback(handing.close)
        try:
            about = pages(traffic, lag, lambda: of_directory(own, handing), lambda: health_of_directory(own, form))
            server = await serve_metadata(
                service,
                secret,
                *address,
                own=own,
                traffic=traffic,
                tracer=tracer,
                pages=about,
                zone=listening.zone,
                tls=tls,
            )
        except OSError as error:
            detail = f"cannot listen on {address.host}:{address.port}: {error.strerror}; choose another with --listen"
            raise CannotStart(detail) from None
        url = listening.url(next(iter(server.sockets)).getsockname()[1])
        own.store.announce(url)
        _announce(directory, url, form, name, key_file)
        log.info("serves the metadata", address=url, host=name, form=form)
        await ended.wait()
        log.info("stopping")
        tell_stopping()
        server.close()
        await server.wait_closed()
    log.info("stopped")


async def _first_key(service: DirectoryService, directory: Path) -> Path:
    known = {key.id: key for key in await service.list_keys(limit=1)}
    # A keyring uses only its store's metadata.
    store = cast(Store, SimpleNamespace(metadata=_Keys(service, known)))
    return await make_first_key(Keyring(store), directory)


def _announce(directory: Path, url: str, form: Form, name: str, key_file: Path) -> None:
    lines = [
        f"pushq {VERSION}  metadata service, host {name}, form {form}",
        f"  url     {url}",
        f"  health  {url.replace('ws', 'http', 1)}/health",
        f"  secret  in {directory / SECRET_FILE}, or as configured",
        *([f"  key     in {key_file}"] if key_file.exists() else []),
        "ready",
    ]
    print("\n".join(lines), file=sys.stdout, flush=True)
    tell_ready()
