"""The Python client: `async with connect(url, key) as pushq` publishes, subscribes and acknowledges.

    async with connect() as pushq:
        await pushq.publish("orders", {"sku": 7})
        async for message in pushq.subscribe("orders", credit=10):
            print(message.body)
            await message.ack()

It imports nothing of the server. `pushq.py` is what a user calls, `core/` decides, `link.py` carries it out,
`transports/` moves frames, `runner.py` has handlers work side by side, `replies.py` brings answers to requests,
`admin.py` is the HTTP API for tools.
"""

from push.client.admin import Admin
from push.client.config import Limits
from push.client.discover import Key
from push.client.errors import (
    ApiError,
    Forbidden,
    Full,
    LeaseLost,
    NoReplyQueue,
    NotFound,
    OutcomeUnknown,
    Problem,
    ProtocolFault,
    PublishManyFailed,
    PushqError,
    Replaced,
    RequestTimeout,
    SessionClosed,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from push.client.message import Message
from push.client.model import (
    Connected,
    DeadLetter,
    Disconnected,
    Gap,
    HandlerFailed,
    Lost,
    Ordering,
    Outgoing,
    Postponed,
    Published,
    Reset,
    SessionEvent,
    Stopped,
    Unreadable,
)
from push.client.outgoing import Publication, PublishOptions
from push.client.pushq import Pushq, connect
from push.client.runner import Runner, RunOptions
from push.client.subscription import Subscription

__all__ = [
    "connect",
    "Pushq",
    "Outgoing",
    "PublishOptions",
    "Publication",
    "Published",
    "Subscription",
    "Runner",
    "RunOptions",
    "Message",
    "Ordering",
    "DeadLetter",
    "SessionEvent",
    "Connected",
    "Disconnected",
    "Postponed",
    "Stopped",
    "Gap",
    "Reset",
    "Lost",
    "Unreadable",
    "HandlerFailed",
    "PushqError",
    "ApiError",
    "Unauthenticated",
    "Forbidden",
    "NotFound",
    "TooLarge",
    "Full",
    "Replaced",
    "ProtocolFault",
    "Unavailable",
    "OutcomeUnknown",
    "LeaseLost",
    "RequestTimeout",
    "NoReplyQueue",
    "SessionClosed",
    "PublishManyFailed",
    "Problem",
    "Limits",
    "Key",
    "Admin",
]
