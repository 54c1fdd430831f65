"""Builds the alerts of one process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from backend_store.client import Store
from gateway.alerts.alerts import Alerts
from gateway.alerts.core.addresses import parse_networks
from gateway.alerts.notifier import Notifier
from gateway.alerts.reports import Reports
from gateway.alerts.secrets import Renewal, Secrets
from gateway.alerts.values import Sources
from gateway.clusters.watch import ClusterWatch
from gateway.config.settings import Settings
from gateway.encryption.setup import Encrypting
from gateway.listener.proxy_gate import Entrance
from gateway.series.sampler import Sampler
from gateway.usage.meter import Meter


@dataclass(frozen=True, slots=True)
class Watching:
    """The parts of alerts that the API needs."""

    alerts: Alerts
    notifier: Notifier
    secrets: Secrets

    async def close(self) -> None:
        """Stores what was found and gives the duty to another gateway."""
        await self.notifier.close()
        await self.alerts.leave()

    async def forget_tenant(self, tenant: str) -> None:
        """Removes all that a deleted tenant had."""
        for receiver_id in await self.alerts.forget_tenant(tenant):
            self.notifier.forget(receiver_id)


def watching(
    store: Store,
    settings: Settings,
    sampler: Sampler,
    meter: Meter,
    entrance: Entrance,
    encryption: Encrypting | None,
    cluster: ClusterWatch | None = None,
    *,
    memory_bytes_max: int,
    clock_ms: Callable[[], int],
) -> Watching:
    """Builds the parts; rules are evaluated after each round of the sampler."""
    name = _name(settings) if store.documents.are_shared else ""
    reports = Reports(store.documents, name)
    sources = Sources(store, sampler, meter, entrance, cluster, reports, memory_bytes_max=memory_bytes_max)
    alerts = Alerts(store.documents, sampler.book, sources, clock_ms=clock_ms, steady_ms=store.node.steady_ms)
    secrets = Secrets(encryption)
    notifier = Notifier(alerts, secrets, networks=parse_networks(settings.alerts.webhook_networks))
    sampler.after.append(alerts.evaluate)
    if encryption is not None:
        encryption.vault.others.append(Renewal(alerts, secrets))
    return Watching(alerts, notifier, secrets)


def _name(settings: Settings) -> str:
    """The gateway's name in reports: its machine, and the port it listens on or else its process id."""
    port = settings.address.port
    return f"{socket.gethostname()}:{port}" if port else f"{socket.gethostname()}:{os.getpid()}"
