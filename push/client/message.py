"""A delivered message: read it, then ack, nack, release or extend it."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

import msgspec

from push.client.core.leases import Delivery
from push.client.core.settling import Action, How, Item
from push.client.errors import ApiError, LeaseLost, Problem
from push.client.link import Link
from push.client.model import DeadLetter, Ordering, Published
from push.client.outgoing import Publication, PublishOptions, outgoing, publications
from push.client.producer import Producer
from push.client.times import Duration, milliseconds

_NO_HEADERS: Mapping[str, str] = {}


class Message:
    """One delivery of one message. There is nothing to settle with `ack="auto"`, from a queue that delivers at most
    once, and on a stream without a group: then `receipt` is None, and `ack`, `nack`, `release` and `extend` do nothing.
    """

    __slots__ = ("_delivery", "_producer")

    def __init__(self, delivery: Delivery, producer: Producer) -> None:
        self._delivery = delivery
        self._producer = producer

    @property
    def id(self) -> str:
        return self._delivery.message.id

    @property
    def body(self) -> Any:
        """The JSON value that was published; bytes if it was anything else."""
        message = self._delivery.message
        if message.body_base64 is not None:
            return binascii.a2b_base64(message.body_base64)
        if isinstance(message.body, bytes) and _is_json(message.content_type):
            return _beyond_messagepack(message.body)
        return message.body

    @property
    def queue(self) -> str:
        return self._delivery.subscription.queue

    @property
    def seq(self) -> int:
        """Rises within (partition, priority), with gaps."""
        return self._delivery.message.seq

    @property
    def partition(self) -> int:
        return self._delivery.message.partition

    @property
    def attempt(self) -> int:
        """How often it was delivered, from 1."""
        return self._delivery.message.attempt

    @property
    def headers(self) -> Mapping[str, str]:
        return self._delivery.message.headers or _NO_HEADERS

    @property
    def content_type(self) -> str:
        return self._delivery.message.content_type

    @property
    def key(self) -> str | None:
        return self._delivery.message.key

    @property
    def priority(self) -> int:
        """0 or more; higher ones come first."""
        return self._delivery.message.priority

    @property
    def published_at(self) -> datetime:
        """When the server stored it, in UTC."""
        return datetime.fromisoformat(self._delivery.message.published_at)

    @property
    def expires_at(self) -> datetime | None:
        """When the message expires, in UTC; None if it does not expire."""
        return _time(self._delivery.message.expires_at)

    @property
    def ordering(self) -> Ordering | None:
        """How a sorted queue placed it; None on other queues."""
        found = self._delivery.message.ordering
        return None if found is None else Ordering(_time(found.get("timestamp")), bool(found.get("late")))

    @property
    def producer(self) -> str | None:
        """The producer that numbered the message; None if it has no number."""
        return self._delivery.message.producer

    @property
    def producer_seq(self) -> int | None:
        """The producer's own number of the message, from 1; None if it has none."""
        return self._delivery.message.producer_seq

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Why it is in a dead-letter queue; None on other queues."""
        found = self._delivery.message.dead_letter
        if found is None:
            return None
        return DeadLetter(
            from_=str(found.get("from", "")),
            reason=str(found.get("reason", "")),
            at=_time(found.get("at")),
            attempts=int(found.get("attempts", 0)),
            history=tuple(found.get("history") or ()),
        )

    @property
    def reply_to(self) -> str | None:
        """The queue for the reply: `reply` publishes to it."""
        return self._delivery.message.reply_to

    @property
    def correlation_id(self) -> str | None:
        return self._delivery.message.correlation_id

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context that the message was published with; a handler's span links to it."""
        return self._delivery.message.traceparent

    @property
    def tracestate(self) -> str | None:
        return self._delivery.message.tracestate

    @property
    def receipt(self) -> str | None:
        """Identifies this lease; needed for acks by other means (HTTP, another process)."""
        return self._delivery.receipt

    @property
    def lost(self) -> bool:
        """Whether the lease ended before the message was settled. If so, it will be delivered again."""
        return self._delivery.is_lost

    async def until_lost(self) -> None:
        """Return when the lease is lost: a long job may race its work against this."""
        if self._delivery.wait_lost is None:
            self._delivery.wait_lost = asyncio.Event()
        if not self._delivery.is_lost:
            assert isinstance(self._delivery.wait_lost, asyncio.Event)
            await self._delivery.wait_lost.wait()

    async def ack(self, *, publish: Iterable[Publication] = ()) -> None:
        """Mark the message as processed; returns when the server has confirmed it. Raises `LeaseLost` if the lease had
        ended before: another consumer may have the message.

        `publish` is stored in the same transaction: `[("invoices", {"order": 7}), ("mails", "sent", {"key": "k"})]`.
        Either both happen or neither. The server allows it between queues that are `colocate_with` each other.
        """
        if publish:
            await settle_together([self], publish)
        else:
            await self._settle(How("ack", self._delivery.subscription))

    async def nack(
        self, *, delay: Duration | None = None, reason: str | None = None, delay_ms: int | None = None
    ) -> None:
        """Give the message back: it is delivered again after `delay` (seconds or a `timedelta`), else after the queue's
        own backoff.

        `reason` is kept with the message and shown with its dead letter. Raises `LeaseLost` if the lease had ended
        before.
        """
        if delay is not None:
            delay_ms = milliseconds(delay)
        await self._settle(How("nack", self._delivery.subscription, delay_ms=delay_ms, reason=reason))

    async def release(self, *, delay: Duration | None = None) -> None:
        """Give back a message that was not begun, at once or after `delay` (seconds or a `timedelta`). It does not
        count as an attempt.

        For a consumer that stops, or that cannot take this message now. Raises `LeaseLost` if the lease had ended
        before.
        """
        delay_ms = None if delay is None else milliseconds(delay)
        await self._settle(How("nack", self._delivery.subscription, delay_ms=delay_ms, tried=False))

    async def extend(self, ms: int) -> None:
        """Extend the lease to `ms` milliseconds from now. Raises `LeaseLost` if the lease had ended before."""
        if ms < 0:
            raise ApiError(
                Problem(
                    code="invalid-request",
                    status=400,
                    detail=f"cannot extend by {ms} ms: the time must not be negative",
                )
            )
        await self._settle(How("extend", self._delivery.subscription, visibility_timeout_ms=ms))

    async def reply(self, body: Any, **options: Unpack[PublishOptions]) -> Published:
        """Answer a request: publish to `reply_to` with the request's `correlation_id`; returns when the reply is
        stored.

        The options are those of `Pushq.publish`. Raises `ValueError` if the message asks for no reply.
        """
        if self.reply_to is None:
            raise ValueError(f"message {self.id} of queue {self.queue!r} expects no reply: it has no reply_to")
        options.setdefault("correlation_id", self.correlation_id)
        return await self._producer.publish(self.reply_to, outgoing(body, **options))

    async def _settle(self, how: How) -> None:
        if self.receipt is not None:
            await settle_soon(self._producer.link, self._delivery, how)

    def __repr__(self) -> str:
        return f"<Message {self.id} queue={self.queue!r} seq={self.seq} attempt={self.attempt}>"


async def settle_together(messages: Sequence[Message], publish: Iterable[Publication] = ()) -> None:
    """Ack messages of one subscription in one request, and publish in the same transaction. See `Pushq.ack`."""
    held = [message for message in messages if message.receipt is not None]
    parts = publications(publish)
    if not held:
        if parts:
            raise ValueError("cannot publish with this ack: none of the messages has a receipt")
        return
    subscription = held[0]._delivery.subscription
    if any(message._delivery.subscription is not subscription for message in held):
        raise ValueError("messages that are acked together must come from one subscription")
    producer = held[0]._producer
    how = How("ack", subscription, step=producer.step(parts))
    if how.step is not None and len(held) > producer.receipts_max:
        raise ValueError(f"{len(held)} receipts in one step; a request allows at most {producer.receipts_max}")
    link = held[0]._producer.link
    settling = [settle_soon(link, message._delivery, how) for message in held]
    results = await asyncio.gather(*settling, return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    lost = [id for error in failed if isinstance(error, LeaseLost) for id in error.ids]
    if len(lost) > 1 and how.step is None:
        raise LeaseLost(f'queue "{subscription.queue}": {len(lost)} of {len(held)} leases had expired', lost)
    if failed:
        raise failed[0]


def settle_soon(link: Link, delivery: Delivery, how: How) -> asyncio.Future[None]:
    """Hand one receipt to the core; receipts of one turn of the loop share a frame. The future is done when the server
    has confirmed."""
    link.check_loop()
    confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    link.core.settle(how, Item(delivery, confirmed), link.now())
    link.kick()
    return confirmed


def _time(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _beyond_messagepack(body: bytes) -> Any:
    """A body that came as bytes over MessagePack: bytes that were published, or the text of a JSON value with integers
    beyond 64 bits, which MessagePack cannot hold."""
    try:
        value = msgspec.json.decode(body)
        msgspec.msgpack.encode(value)
    except OverflowError:
        return value
    except (msgspec.MsgspecError, RecursionError):
        pass
    return body


__all__ = ["Action", "Message", "settle_soon", "settle_together"]
