"""`pushq backend`: the role that stores replicated shards of queues together with the other backends of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import structlog
import uvloop

from backend_store.client.embedded import EmbeddedStore
from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.embedded_host import open_embedded
from backend_store.cluster.etcd.driver import open_etcd
from backend_store.core.replication.record import NodeId
from backend_store.hosts.door import Door, OwnersOfLanes
from backend_store.hosts.table import copies, table_of, there
from backend_store.model import Epoch, PushqError
from backend_store.node.node import Node, end_process
from backend_store.remote.line.host_doors import Unheard
from backend_store.remote.line.line import Line
from backend_store.service.acts import hold_acts
from backend_store.service.recovering import operate
from backend_store.service.serving import Leader, StoreServer, StoreService
from backend_store.shard.health import serve_health
from backend_store.shard.host import BackendHost, HostConfig, open_host
from backend_store.shard.interface import Shard, ShardNumber
from backend_store.shard.limits import HOME_SECONDS, LANE_HOME_SECONDS
from backend_store.shard.manager import Rules
from backend_store.shard.rounds import Patience
from backend_store.storage.engine import FolderInUse, StorageError
from backend_store.storage.folder import FolderLock, make_private
from backend_store.storage.writer import prepare_interpreter
from gateway.admission.loop_lag import LoopLag
from gateway.admission.memory import keep_what_is_imported
from gateway.clock import wall_clock_ms
from gateway.clusters.etcd_access import access_of, etcd_config
from gateway.config.addresses import Address, parse_address
from gateway.config.backend_rules import coordinator_of
from gateway.config.settings import Settings
from gateway.listener.certificates import CertificateError, Files, OwnCertificates, load_client, load_server, watched
from gateway.observability.logs import configure_logs
from gateway.observability.metrics.backend import page
from gateway.observability.metrics.usage import of_backend
from gateway.observability.tracing import spans_of
from gateway.roles.errors import CannotStart
from gateway.roles.systemd import SIGNALS, tell_ready, tell_stopping
from gateway.usage.led_export import LedExports
from gateway.version import VERSION

log = structlog.get_logger("pushq.backend")


Attach = Callable[[BackendHost], AbstractAsyncContextManager[None]]
"""Makes the context manager that serves a host's shards to others, entered once it runs and left before it ends."""


def serve_backend_role(settings: Settings, attach: Attach | None = None) -> None:
    """Serves until a signal ends it. Raises `CannotStart`."""
    if not settings.node.name:
        raise CannotStart("node.name is missing: a backend needs a name that is unique in its cluster")
    configure_logs(settings.logs)
    prepare_interpreter()
    keep_what_is_imported()
    own = OwnCertificates()
    uvloop.run(_serve(settings, attach or partial(to_gateways, settings, own), own))


@contextlib.asynccontextmanager
async def to_gateways(settings: Settings, own: OwnCertificates, host: BackendHost) -> AsyncIterator[None]:
    """Serves to gateways the shards that this host leads, while it leads them. Raises `CannotStart`."""
    node, address = settings.node, parse_address(settings.node.service)
    services: dict[int, StoreService] = {}
    lanes, spans, rules = _lanes(settings), spans_of(settings), host.config.rules
    usage = LedExports(
        settings.usage_directory,
        clock_ms=wall_clock_ms,
        period_ms=settings.usage.period_seconds * 1000,
        bytes_max=settings.usage.bytes_max,
        kept_days=settings.usage.kept_days,
    )

    sent_on: dict[int, tuple[Epoch, str]] = {}
    """Shard → (epoch at which this process handed its leadership over, address of the new leader)."""

    copied = partial(copies, host.view, rules.shards_all)

    def leader(shard: int) -> str | None:
        found = host.leaders.get(ShardNumber(shard))
        known, epoch = (None, Epoch(0)) if found is None else (found.address, found.epoch)
        handed_at, to = sent_on.get(shard, (Epoch(-1), ""))
        return to if handed_at >= epoch else known

    def is_coming(shard: int) -> bool:
        here = host.shards.get(ShardNumber(shard))
        return here is not None and here.is_coming

    def led(shard: Shard, store: Node) -> None:
        sent_on.pop(shard.number, None)
        is_first = shard.number == 0  # shard 0 has the definitions of all queues
        embedded = EmbeddedStore(store)
        embedded.load = host.load
        laned = {"lane": shard.number, "lanes": lanes} if lanes else {"shards": rules.shards if is_first else 1}
        services[shard.number] = StoreService(
            embedded, shard=shard.number, tracer=spans, copies=copied, mode=rules.mode, **laned
        )
        hold_acts(embedded)
        usage.lead(shard.number, store.copy_id, shard.epoch, ledger=store.ledger, audit=store.audit)
        server.led()

    async def leaving(shard: Shard, address: str) -> None:
        sent_on[shard.number] = shard.epoch, address
        if (service := services.get(shard.number)) is not None:
            await service.finish(address)

    def lost(shard: Shard) -> None:
        usage.lose(shard.number)
        if (service := services.pop(shard.number, None)) is not None:
            service.close()

    door: Door | None = None
    files = _files(settings)
    try:
        tls = None if files is None else own.context(files, load_server)
        if lanes:
            to_others = None if files is None else own.context(files, load_client)
            door = _door(settings, host, services, leader, to_others)
            host.before_drain = door.finish
        server = StoreServer(
            services,
            leader,
            partial(operate, host.recovery),
            is_coming=is_coming,
            door=door,
            there=lambda: there(host.view, lanes),
            copies=copied,
            name=f"backend {node.name}",
            strangers=host.lines.strangers,
        )
        await server.listen(address.host, address.port, tls)
    except OSError as error:
        raise CannotStart(f"node.service: cannot listen on {node.service}: {error.strerror or error}") from None
    except CertificateError as error:
        raise CannotStart(f"node.tls_cert: {error}") from None
    host.view.on_told = server.tell_backends
    host.listen(on_lead=led, on_lose=lost, on_leave=leaving)
    watching = asyncio.create_task(door.watch(), name="door") if door is not None else None
    host.more_metrics = partial(of_backend, usage)
    try:
        yield
    finally:
        host.view.on_told = lambda: None
        if watching is not None:
            watching.cancel()
        await server.close()
        if door is not None:
            await door.close()
        for service in services.values():
            service.close()
        await usage.close()


def _lanes(settings: Settings) -> int:
    """The number of lanes; 0 unless the cluster's model is independent hosts."""
    return settings.cluster.lanes if settings.cluster.model == "independent_hosts" else 0


def _files(settings: Settings) -> Files | None:
    node = settings.node
    return Files(Path(node.tls_cert), Path(node.tls_key), Path(node.tls_ca)) if node.tls_cert else None


def _door(
    settings: Settings,
    host: BackendHost,
    services: Mapping[int, StoreService],
    owner: Leader,
    tls: ssl.SSLContext | None,
) -> Door:
    node, lanes = settings.node, _lanes(settings)
    # Calls are numbered per process: an owner must not answer them with results of calls of a process before this one.
    name = f"host-{node.name}-{secrets.token_hex(6)}"

    def open_line(lane: int, heard: Unheard) -> Line:
        return Line(lane, OwnersOfLanes(owner), heard, name, tls, whose=f"the owner of lane {lane}")

    return Door(
        node.name,
        lambda: table_of(host.view, lanes),
        lambda: host.view.nodes,
        services,
        open_line,
        lanes=lanes,
        zone=node.zone,
    )


async def _serve(settings: Settings, attach: Attach, own: OwnCertificates) -> None:
    directory = settings.directory
    make_private(directory)
    try:
        lock = FolderLock(directory)
    except FolderInUse as error:
        raise CannotStart(f"{error}; stop it, or choose another folder with --data") from None
    try:
        async with _coordinator(settings, own) as coordinator:
            await _serve_with(settings, coordinator, attach, own)
    finally:
        lock.release()
    log.info("stopped")


@contextlib.asynccontextmanager
async def _coordinator(settings: Settings, own: OwnCertificates) -> AsyncIterator[Coordinator]:
    at = coordinator_of(settings.cluster)
    if at is None:
        try:
            embedded = open_embedded(settings.directory / "coordinator", on_fatal=end_process)
        except (StorageError, OSError) as error:
            raise CannotStart(f"cannot open the coordinator's folder: {error}") from error
        try:
            yield embedded.coordinator
        finally:
            await embedded.close()
        return
    try:
        etcd = await open_etcd(etcd_config(at, access_of(settings.cluster), own))
    except PushqError as error:
        raise CannotStart(f"cluster.coordinator: {error.detail}") from None
    try:
        yield etcd
    finally:
        await etcd.close()


async def _serve_with(settings: Settings, coordinator: Coordinator, attach: Attach, own: OwnCertificates) -> None:
    http = parse_address(settings.node.http)
    ended = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, _end, number, ended)
    try:
        host = await open_host(_config(settings, own), coordinator)
    except (StorageError, OSError, CertificateError, ValueError) as error:
        raise CannotStart(f"cannot start the backend in {settings.directory}: {error}") from error
    lag = LoopLag()
    watching = asyncio.create_task(lag.watch(), name="loop lag")
    try:
        health = await _listen(host, http, lag)
        try:
            async with attach(host), watched(own):
                _announce(settings, host, http._replace(port=health.sockets[0].getsockname()[1]))
                await ended.wait()
                await host.drain()
        finally:
            health.close()
            await health.wait_closed()
    finally:
        watching.cancel()
        await host.close()


async def _listen(host: BackendHost, http: Address, lag: LoopLag) -> asyncio.Server:
    try:
        return await serve_health(host, http.host, http.port, {b"/metrics": page(host, lag)})
    except OSError as error:
        raise CannotStart(f"node.http: cannot listen on {http.host}:{http.port}: {error.strerror}") from None


def _config(settings: Settings, own: OwnCertificates) -> HostConfig:
    """Raises `CertificateError`."""
    node, cluster = settings.node, settings.cluster
    is_alone = coordinator_of(cluster) is None
    files = _files(settings)
    return HostConfig(
        NodeId(node.name),
        settings.directory,
        node.listen,
        zone=node.zone,
        service=node.service,
        http=node.http,
        tls=None if files is None else own.both_sides(files),
        rules=Rules(
            shards=cluster.shards,
            replicas=1 if is_alone else cluster.replicas,
            min_in_sync=1 if is_alone else cluster.min_in_sync,
            mode=cluster.replication,
            async_shards=0 if is_alone or cluster.replication == "async" else cluster.async_shards,
            lanes=_lanes(settings),
            patience=Patience(cluster.replace_after_s, cluster.rebalance_after_s),
        ),
        move_bytes_per_s=cluster.move_bytes_per_s,
        scrub_bytes_per_s=cluster.scrub_bytes_per_s,
        scrub_every_s=cluster.scrub_every_s,
        home_s=LANE_HOME_SECONDS if _lanes(settings) else HOME_SECONDS,
    )


def _end(number: int, ended: asyncio.Event) -> None:
    log.info("stopping", signal=signal.Signals(number).name)
    tell_stopping()
    ended.set()


def _announce(settings: Settings, host: BackendHost, http: Address) -> None:
    lines = [
        f"pushq {VERSION}  backend {settings.node.name}, data in {settings.directory}",
        f"  peers   {host.peer}",
        f"  health  {http.url}/health",
        f"  gateways  {settings.node.service}",
        "ready",
    ]
    print("\n".join(lines), file=sys.stdout, flush=True)
    tell_ready()
