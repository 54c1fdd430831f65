"""The storage process: holds the data folder, and serves its messages to the gateway processes of the same server.

To its gateways it is what a backend of a cluster is, with one shard and one replica, over a socket in the folder. It
neither authenticates callers nor has keys: only gateways open encrypted messages.
"""

from __future__ import annotations

import asyncio
import signal

import structlog
import uvloop

from backend_store.client import Store, open_store
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.engine import ClockAhead, FolderInUse, StorageError
from backend_store.storage.space import SpaceRules
from backend_store.wire.store_frames import Copies
from gateway.admission.memory import keep_what_is_imported
from gateway.clock import wall_clock_ms
from gateway.config.settings import Settings
from gateway.listener.server import bind_unix
from gateway.observability.logs import configure_logs
from gateway.observability.tracing import spans_of
from gateway.processes.child import Parent, Spec
from gateway.processes.limits import LEAVING_SECONDS_MAX
from gateway.roles.errors import CannotStart, cannot_open, clock_ahead
from gateway.usage.export import Exporter
from gateway.usage.meter import Meter

log = structlog.get_logger("pushq.storage")

STORAGE_SOCKET = "storage.sock"


def serve_storage(spec: Spec, parent: Parent) -> None:
    """Serves until its parent ends it or is gone. Raises `CannotStart`."""
    configure_logs(spec.settings.logs)
    keep_what_is_imported()
    uvloop.run(_serve(spec.settings, parent))


async def _serve(settings: Settings, parent: Parent) -> None:
    over = asyncio.Event()
    store = await _opened(settings)
    try:
        _check(store, settings)
        service = StoreService(store, shards=1, tracer=spans_of(settings), copies=lambda: [Copies("sync", 1, 1)])
        server = StoreServer({0: service})
        await server.listen_local(bind_unix(settings.directory, STORAGE_SOCKET))
    except BaseException:
        await store.close()
        raise
    exporter = _exporter(store, settings)
    exporting = asyncio.create_task(exporter.run(), name="usage")
    for number in (signal.SIGTERM, signal.SIGINT):
        # A signal sent to all processes at once is meant for the server: the gateways still need this process.
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    parent.when_gone(over.set)
    parent.ready()
    await over.wait()
    await _gateways_left(service)
    await server.close()
    service.close()
    exporter.stop()
    await exporting
    await exporter.close()
    (settings.directory / STORAGE_SOCKET).unlink(missing_ok=True)
    await store.close([])
    log.info("stopped")


async def _opened(settings: Settings) -> Store:
    kept = settings.storage
    space = SpaceRules(kept.publish_stop_percent / 100, kept.ballast_bytes or None)
    try:
        days_max = kept.clock_jump_days_max
        return await open_store(settings.directory, space=space, clock_jump_days_max=days_max, is_keyless=True)
    except FolderInUse as error:
        raise CannotStart(f"{error}; stop it, or choose another folder with --data") from None
    except ClockAhead as error:
        raise clock_ahead(settings.data, str(error), error.days) from None
    except (StorageError, OSError) as error:
        raise cannot_open(settings.data, error) from error


def _check(store: Store, settings: Settings) -> None:
    """Raises `CannotStart` for a folder whose content needs what only a single process can do: this one has no keys."""
    metadata = store.node.metadata
    if metadata.adopted_from is not None:
        raise CannotStart(
            f"the queues in {settings.data} belong to a metadata service, which does not work with several "
            "processes: start without --gateways"
        )
    for moved in metadata.moved.values():
        if moved.definition.config.encrypted:
            raise CannotStart(
                f"queue {moved.definition.name!r} of tenant {moved.definition.tenant!r} was encrypted and deleted "
                "with move_to, and later publishes to it are still forwarded: start without --gateways until that "
                "ends"
            )


def _exporter(store: Store, settings: Settings) -> Exporter:
    """Exports the ledger and the audit here, where they are stored; the gateways export the minutes."""
    return Exporter(
        settings.usage_directory,
        store.id,
        ledger=store.ledger,
        audit=store.audit,
        meter=Meter(store.id, wall_clock_ms),
        clock_ms=wall_clock_ms,
        period_ms=settings.usage.period_seconds * 1000,
        bytes_max=settings.usage.bytes_max,
        kept_days=settings.usage.kept_days,
    )


async def _gateways_left(service: StoreService) -> None:
    """Waits until the gateways have left: acks from clients until then must be stored."""
    try:
        async with asyncio.timeout(LEAVING_SECONDS_MAX):
            await service.is_empty.wait()
    except TimeoutError:
        log.warning("gateway processes do not exit and are disconnected")
