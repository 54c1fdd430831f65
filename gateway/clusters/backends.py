"""Opens the store of a gateway that stores no messages itself: a client of its backends, with encryption in the
gateway, so that backends never see bodies of encrypted queues."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from backend_store.client import Metadata
from backend_store.model import PushqError, Unavailable
from backend_store.remote.definitions.directory import Directory, FixedDirectory, LocalDirectory
from backend_store.remote.store import ClusterAt, Landing, RemoteBackends
from gateway.admission.dependency_guard import Guards
from gateway.clock import wall_clock_ms
from gateway.config.addresses import Address, parse_address
from gateway.config.settings import Settings, StoreSettings
from gateway.encryption.master_keys import MasterError
from gateway.encryption.setup import Encrypting, encrypting
from gateway.listener.certificates import CertificateError, Files, OwnCertificates, load_client
from gateway.roles.errors import CannotStart
from push.delivery.lookup_retry import LookingUp


async def open_backends(settings: Settings, guards: Guards, own: OwnCertificates) -> tuple[RemoteBackends, Encrypting]:
    """Connects to the backends, and sets encryption up. Raises `CannotStart`."""
    settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"the backends that store.backends names, {', '.join(settings.store.backends)}"
    return await _opened(backends_of(settings, own), settings, guards, name)


def backends_of(settings: Settings, own: OwnCertificates) -> RemoteBackends:
    """The client of the configured backends, not opened yet. Raises `CannotStart`."""
    home, *others = clusters_of(settings.store)
    return RemoteBackends(
        home.directory,
        tls_of(settings.store, own),
        _looking_up,
        addresses=home.addresses,
        name=home.name,
        others=others,
        zone=settings.node.zone,
    )


async def open_storage(settings: Settings, guards: Guards, path: Path) -> tuple[RemoteBackends, Encrypting]:
    """Does the same for the storage process of this server, by its socket. Raises `CannotStart`."""
    directory: Directory = LocalDirectory(path)
    # One gateway of the server evaluates the alert rules, so their state belongs to the server and its folder.
    store = RemoteBackends(directory, None, _looking_up, is_local=True)
    return await _opened(store, settings, guards, "the storage process")


async def _opened(
    store: RemoteBackends, settings: Settings, guards: Guards, name: str
) -> tuple[RemoteBackends, Encrypting]:
    try:
        await store.open()
        encryption = await encrypting(cast(Metadata, store.metadata), settings, guards, clock_ms=wall_clock_ms)
    except (MasterError, Unavailable) as error:
        await store.close()
        raise CannotStart(f"cannot start with {name}: {error}") from None
    except asyncio.CancelledError:
        await store.close()
        raise
    store.seal_with(encryption.vault, encryption.vault.learn)
    encrypted = [one for one in store.metadata.queues.values() if one.config.encrypted]
    await encryption.vault.ready(encrypted)
    return store, encryption


def clusters_of(store: StoreSettings) -> list[ClusterAt]:
    """The addresses of each cluster, the home cluster first."""
    named = [(store.cluster, store.backends), *((one.name, one.backends) for one in store.clusters)]
    return [_cluster_at(name, [parse_address(one) for one in backends]) for name, backends in named]


def _cluster_at(name: str, backends: Sequence[Address]) -> ClusterAt:
    addresses = [(one.host, one.port) for one in backends]
    return ClusterAt(name, FixedDirectory(addresses), addresses)


def tls_of(store: StoreSettings, own: OwnCertificates) -> ssl.SSLContext | None:
    """The TLS context for connections to backends; None without TLS. Raises `CannotStart`."""
    if not store.tls_cert:
        return None
    try:
        return own.context(Files(Path(store.tls_cert), Path(store.tls_key), Path(store.tls_ca)), load_client)
    except CertificateError as error:
        raise CannotStart(f"cannot speak TLS to the backends: {error}") from None


def _looking_up(what: str, flight: Landing) -> PushqError:
    return LookingUp(what, flight)
