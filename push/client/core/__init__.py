"""The client's rules without I/O: frames and the time go in, frames to send and events come out."""

from push.client.core.leases import Delivery
from push.client.core.session import SessionCore
from push.client.core.subscriptions import Subscribed, SubscriptionState

__all__ = ["SessionCore", "SubscriptionState", "Subscribed", "Delivery"]
