"""What the handlers of one gateway process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backend_store.client import Store
from gateway.auth import Keyring
from gateway.config import Settings
from gateway.desk import GatewayDesk
from gateway.tickets import TicketOffice
from push.hub import Hub
from throttling.limiter import MemoryLimiter


@dataclass(frozen=True, slots=True)
class Gateway:
    settings: Settings
    store: Store
    keyring: Keyring
    tickets: TicketOffice
    desk: GatewayDesk
    hub: Hub
    limiter: MemoryLimiter
    clock_ms: Callable[[], int]
