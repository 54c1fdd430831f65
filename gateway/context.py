"""The objects that all handlers of one gateway process share; `app` makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from backend_store.client import Store
from gateway.admission.dependency_guard import Guards
from gateway.admission.throttle import Throttle
from gateway.alerts.setup import Watching
from gateway.clusters.overview import ClustersView
from gateway.clusters.recovery import Recovery
from gateway.clusters.watch import ClusterWatch
from gateway.config.settings import Settings
from gateway.desk import GatewayDesk
from gateway.encryption.setup import Encrypting
from gateway.identity.authentication import Keyring
from gateway.identity.revocable_work import RevocableWork
from gateway.identity.tickets import TicketOffice
from gateway.observability.queue_numbers import QueueNumbers
from gateway.observability.refused_acts import RefusedActs
from gateway.processes.siblings import Siblings
from gateway.publishing.idempotent_publish import IdempotentPublish
from gateway.series.sampler import Sampler
from gateway.usage.export import Exporter
from gateway.usage.live import LiveUsage
from push.delivery.hub import Hub


@dataclass(frozen=True, slots=True)
class Gateway:
    settings: Settings
    store: Store
    keyring: Keyring
    tickets: TicketOffice
    desk: GatewayDesk
    hub: Hub
    throttle: Throttle
    clock_ms: Callable[[], int]
    guards: Guards
    once: IdempotentPublish
    usage: Exporter
    sampler: Sampler
    watching: Watching
    begun: RevocableWork
    numbers: QueueNumbers
    encryption: Encrypting | None = None
    """None if nothing is encrypted: only in tests of other things."""
    cluster: ClusterWatch | None = None
    """None if the settings name no coordinator of a cluster."""
    live_usage: LiveUsage | None = None
    """None if the settings name no folder of the job `live_usage`."""
    recovery: Recovery | None = None
    """None unless this gateway stores its messages with a cluster's backends."""
    siblings: Siblings | None = None
    """The other gateway processes, in the process that answers for all; None in those, and in a single process."""
    number: int = 1
    """Which gateway process of its server this one is."""
    clusters: ClustersView | None = None
    """None unless this gateway stores its messages with clusters of backends."""
    further: Mapping[str, ClusterWatch] = field(default_factory=dict)
    """Watches of further clusters, by name, whose coordinator the settings name; `cluster` is the home cluster's."""
    refused_acts: RefusedActs = field(default_factory=RefusedActs)
