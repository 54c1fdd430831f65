"""Types of the frames and events that the server sends over WebSocket and SSE, for the AsyncAPI document.

`push` writes them as bytes or plain dictionaries, for speed; a test checks real frames against these types.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from gateway.api.shapes.bodies import DeliveredMessage, DurabilityView, OutputView, PlacedView, ProblemView, ResultView

RequestId = int | str


class LimitsView(msgspec.Struct):
    """Bounds of one socket."""

    frame_bytes_max: int
    messages_per_publish_max: int
    requests_in_progress_max: int
    in_flight_per_subscription_max: int
    subscriptions_max: int


def _type(name: str) -> str:
    return name.removesuffix("Frame").removesuffix("Event").lower()


class _Sent(msgspec.Struct, kw_only=True, tag_field="type", tag=_type):
    pass


class ConnectedFrame(_Sent, kw_only=True):
    """The session is open. `resumed`: an earlier session continues."""

    session: str
    resumed: bool
    ping_ms: int
    resume_ms: int
    limits: LimitsView
    id: RequestId | msgspec.UnsetType = msgspec.UNSET


class OkFrame(_Sent, kw_only=True):
    """The answer to a request with an `id`."""

    id: RequestId
    sub: int | msgspec.UnsetType = msgspec.UNSET
    resume: Literal["complete", "gap", "reset"] | msgspec.UnsetType = msgspec.UNSET
    cursor: str | msgspec.UnsetType = msgspec.UNSET
    """Of a subscription to a stream: the cursor where it begins."""
    visibility_timeout_ms: int | msgspec.UnsetType = msgspec.UNSET
    """Of a subscription to a work queue: how long its leases last."""
    messages: list[PlacedView] | msgspec.UnsetType = msgspec.UNSET
    durability: DurabilityView | msgspec.UnsetType = msgspec.UNSET
    sequencing: Literal["arrival", "producer", "clock"] | msgspec.UnsetType = msgspec.UNSET
    """Of a publish: what the queue orders by; tells a producer which fields its next messages need."""
    dedupe: Literal["none", "id", "content"] | msgspec.UnsetType = msgspec.UNSET
    results: list[ResultView] | msgspec.UnsetType = msgspec.UNSET
    published: list[OutputView] | msgspec.UnsetType = msgspec.UNSET
    """Of an ack that publishes: one row per publish."""


class ErrorFrame(_Sent, kw_only=True):
    """A refusal. With an `id` it answers a request, and the socket stays open."""

    problem: ProblemView
    id: RequestId | msgspec.UnsetType = msgspec.UNSET


class DeliverFrame(_Sent, kw_only=True):
    """Messages of a subscription. Those of a stream come with the cursor to continue from."""

    sub: int
    messages: list[DeliveredMessage]
    cursor: str | msgspec.UnsetType = msgspec.UNSET


class GapFrame(_Sent, kw_only=True):
    """The range of seqs that the subscriber asked for and that are no longer stored."""

    sub: int
    from_: int = msgspec.field(name="from")
    to: int
    partition: int | msgspec.UnsetType = msgspec.UNSET
    """Of a stream with several partitions: the one of the seqs."""


class ResetFrame(_Sent, kw_only=True):
    """The cursor belongs to another log, or the log was replaced from there on while it was read. Reading continues
    from there.
    """

    sub: int
    cursor: str | None


class LostFrame(_Sent, kw_only=True):
    """Leases that ended before they were settled."""

    sub: int
    receipts: list[str]


class EndedFrame(_Sent, kw_only=True):
    """The subscription has ended; `problem` says why, such as a deleted queue."""

    sub: int
    problem: ProblemView


class ByeFrame(_Sent, kw_only=True):
    """The server closes this socket; `retry_ms` says when to come back."""

    code: int
    reason: str
    retry_ms: int


class PingFrame(_Sent, kw_only=True):
    """To be answered with `pong`; any other frame is an answer, too."""


class PongFrame(_Sent, kw_only=True):
    """The answer to a `ping`, with its `id`."""

    id: RequestId | msgspec.UnsetType = msgspec.UNSET


SERVER_FRAMES: Final[tuple[type[Any], ...]] = (
    ConnectedFrame,
    OkFrame,
    ErrorFrame,
    DeliverFrame,
    GapFrame,
    ResetFrame,
    LostFrame,
    EndedFrame,
    ByeFrame,
    PingFrame,
    PongFrame,
)


class MessageEvent(DeliveredMessage, kw_only=True):
    """`event: message`"""


class GapEvent(_Sent, kw_only=True):
    """`event: gap`: the range of seqs that are no longer stored."""

    from_: int = msgspec.field(name="from")
    to: int
    partition: int | msgspec.UnsetType = msgspec.UNSET


class ResetEvent(_Sent, kw_only=True):
    """`event: reset`: the cursor belongs to another log, or the log was replaced while it was read."""

    cursor: str | None


class EndedEvent(_Sent, kw_only=True):
    """`event: ended`: the queue was deleted, or the key was revoked."""

    problem: ProblemView


class ByeEvent(_Sent, kw_only=True):
    """`event: bye`: the server shuts down; `retry:` says when to come back."""

    code: int
    reason: str
    retry_ms: int


EVENTS: Final[tuple[type[Any], ...]] = (MessageEvent, GapEvent, ResetEvent, EndedEvent, ByeEvent)
