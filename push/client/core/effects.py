"""The effects that a step of the core leaves to the shell, and the phases of a session."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from push.client.core.leases import Delivery
from push.client.core.publisher import Outcome
from push.client.core.settling import Settled
from push.client.core.subscriptions import SubscriptionState
from push.client.model import SessionEvent


class Phase(Enum):
    OFFLINE = "offline"
    CONNECTING = "connecting"
    OPEN = "open"
    STOPPED = "stopped"


class Effects(NamedTuple):
    """What the shell has to do after one step of the core."""

    published: list[Outcome]
    settled: list[Settled]
    changed: list[SubscriptionState]
    lost: list[Delivery]
    events: list[SessionEvent]

    @classmethod
    def none(cls) -> Effects:
        return cls([], [], [], [], [])
