"""What the handlers of one gateway process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backend_store.client import Store
from gateway.auth import Keyring
from gateway.desk import GatewayDesk
from gateway.encryption import Encrypting
from gateway.guard import Guards
from gateway.once import Once
from gateway.settings import Settings
from gateway.throttle import Throttle
from gateway.tickets import TicketOffice
from gateway.usage.export import Exporter
from push.hub import Hub


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
    once: Once
    usage: Exporter
    encryption: Encrypting | None = None
    """None where nothing is encrypted: in tests of other things."""
