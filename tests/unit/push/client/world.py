"""A session core with a clock moved by hand and a server played by the test."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from push.client.config import Limits
from push.client.core import Delivery, SessionCore, Subscribed, SubscriptionState
from push.client.core.clock import HybridClock
from push.client.core.effects import Effects
from push.client.core.numbering import Numbering
from push.client.core.settling import How, Item
from push.client.errors import PushqError
from push.client.frames import (
    Ack,
    AnyClientFrame,
    AnyServerFrame,
    Codec,
    ConnectedFrame,
    Deliver,
    Extend,
    Nack,
    Ok,
    Publish,
    PublishedItem,
    PublishPart,
    SettleResult,
    Subscribe,
    WireMessage,
)
from push.client.model import SessionEvent

F = TypeVar("F")

CODEC = Codec("msgpack")
WALL_MS = 1_790_000_000_000


class World:
    """`chance` 1.0 makes every jittered delay its longest. `wall_ms` is the computer's clock, which nothing moves."""

    def __init__(
        self, *, chance: float = 1.0, first_number: int = 1, number_always: bool = False, **limits: Any
    ) -> None:
        bounds = Limits(**limits)
        self.wall_ms = WALL_MS
        self.numbering = Numbering(
            "p1",
            HybridClock(ahead_ms_max=bounds.clock_ahead_ms_max),
            lambda: self.wall_ms,
            CODEC.add_fields,
            queues_max=bounds.publish_queues_max,
            first_number=first_number,
            is_always=number_always,
        )
        self.core = SessionCore(bounds, lambda: chance, self.numbering)
        self.now = 1000.0
        self.results: dict[object, object] = {}
        self.settled: dict[object, PushqError | None] = {}
        self.lost: list[Delivery] = []
        self.events: list[SessionEvent] = []

    def open(self, session: str = "s1", *, ping_ms: int = 25_000) -> None:
        connect = self.core.connect("token", self.now)
        self.feed(ConnectedFrame(session=session, id=connect.id, ping_ms=ping_ms))

    def cut(self, code: int | None = None, reason: str = "cut") -> float:
        wait, effects = self.core.disconnected(code, reason, self.now)
        self.note(effects)
        return wait

    def feed(self, *frames: AnyServerFrame) -> None:
        self.note(self.core.receive(list(frames), self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.note(self.core.tick(self.now))

    def note(self, effects: Effects) -> None:
        self.results.update(effects.published)
        self.settled.update({settled.item.ticket: settled.error for settled in effects.settled})
        self.lost += effects.lost
        self.events += effects.events

    def take(self, kind: type[F]) -> list[F]:
        return [frame for frame in self.core.take(self.now) if isinstance(frame, kind)]

    def take_all(self) -> list[AnyClientFrame]:
        return self.core.take(self.now)

    def publish(self, *tickets: str, queue: str = "q") -> None:
        for ticket in tickets:
            self.core.publish(queue, raw(ticket), ticket, self.now)

    def confirm(self, frame: Publish, *, sequencing: str | None = None, dedupe: str | None = None) -> None:
        items = [PublishedItem(id=body_of(message), seq=n) for n, message in enumerate(frame.messages)]
        self.feed(Ok(id=frame.id, messages=items, sequencing=sequencing, dedupe=dedupe))

    def subscribe(self, sub: int = 1, **asked: Any) -> SubscriptionState:
        """A subscription that the server has accepted."""
        wanted: dict[str, Any] = {"queue": "q", "credit": 10} | asked
        state = self.core.subscribe(Subscribed(**wanted))
        self.accept(sub)
        return state

    def accept(self, sub: int = 1) -> Subscribe:
        frame = self.take(Subscribe)[0]
        self.feed(Ok(id=frame.id, sub=sub))
        return frame

    def deliver(self, *ids: str, sub: int = 1, cursor: str | None = None, with_receipt: bool = True) -> None:
        messages = [WireMessage(id=id, receipt=f"r-{id}" if with_receipt else None) for id in ids]
        self.feed(Deliver(sub=sub, messages=messages, cursor=cursor))

    def get(self, state: SubscriptionState) -> Delivery:
        delivery = state.take(self.now)
        assert delivery is not None, "nothing to take"
        return delivery

    def settle(self, delivery: Delivery, action: Any = "ack", **how: Any) -> None:
        """`step` is what an ack publishes."""
        item = Item(delivery, f"{action} {delivery.message.id}")
        self.core.settle(How(action, delivery.subscription, **how), item, self.now)

    def answer(self, frame: Ack | Nack | Extend, *, ok: bool = True) -> None:
        self.feed(Ok(id=frame.id, results=[SettleResult(receipt, ok) for receipt in frame.receipts]))


def numbers(frame: Publish | PublishPart) -> list[int | None]:
    """Each message's `producer_seq`."""
    return [fields_of(message).get("producer_seq") for message in frame.messages]


def fields_of(message: msgspec.Raw) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.msgpack.decode(message)
    return fields


def raw(body: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode({"body": body}))


def body_of(message: msgspec.Raw) -> str:
    return str(msgspec.msgpack.decode(message)["body"])


def bodies(frame: Publish | PublishPart) -> list[str]:
    return [body_of(message) for message in frame.messages]
