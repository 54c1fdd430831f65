"""A message in the user's hands: read it, then say what became of it."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from push.client.core.leases import Delivery
from push.client.core.settling import Action, How, Item
from push.client.errors import ApiError, Problem
from push.client.link import Link

_NO_HEADERS: Mapping[str, str] = {}


class Message:
    """One delivery of one message. Under `ack="auto"`, and on a stream without a group, there is nothing to settle:
    then `receipt` is None and `ack`, `nack` and `extend` do nothing."""

    __slots__ = ("_delivery", "_link")

    def __init__(self, delivery: Delivery, link: Link) -> None:
        self._delivery = delivery
        self._link = link

    @property
    def id(self) -> str:
        return self._delivery.message.id

    @property
    def body(self) -> Any:
        """The JSON value that was published; bytes when it was anything else."""
        message = self._delivery.message
        return message.body if message.body_base64 is None else binascii.a2b_base64(message.body_base64)

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
        return self._delivery.message.priority

    @property
    def published_at(self) -> datetime:
        """When the server stored it, in UTC."""
        return datetime.fromisoformat(self._delivery.message.published_at)

    @property
    def expires_at(self) -> datetime | None:
        text = self._delivery.message.expires_at
        return None if text is None else datetime.fromisoformat(text)

    @property
    def reply_to(self) -> str | None:
        return self._delivery.message.reply_to

    @property
    def correlation_id(self) -> str | None:
        return self._delivery.message.correlation_id

    @property
    def receipt(self) -> str | None:
        """The proof of this lease; acks by other means (HTTP, another process) need it."""
        return self._delivery.receipt

    @property
    def lost(self) -> bool:
        """Has the lease ended before the message was settled? Then it will be delivered again."""
        return self._delivery.is_lost

    async def until_lost(self) -> None:
        """Return when the lease is lost: a long job may race its work against this."""
        if self._delivery.wait_lost is None:
            self._delivery.wait_lost = asyncio.Event()
        if not self._delivery.is_lost:
            assert isinstance(self._delivery.wait_lost, asyncio.Event)
            await self._delivery.wait_lost.wait()

    async def ack(self) -> None:
        """Done: returns when the server confirmed it. `LeaseLost` when another may have been given the message."""
        await self._settle(How("ack", self._delivery.subscription))

    async def nack(self, delay_ms: int = 0, reason: str | None = None) -> None:
        """Not done: deliver it again, `delay_ms` later. `LeaseLost` when the lease had ended before."""
        await self._settle(How("nack", self._delivery.subscription, delay_ms=delay_ms, reason=reason))

    async def extend(self, ms: int) -> None:
        """Hold it for `ms` milliseconds from now. `LeaseLost` when the lease has ended."""
        if ms < 0:
            raise ApiError(
                Problem(code="invalid-request", status=400, detail=f"extend by {ms} ms: must not be negative")
            )
        await self._settle(How("extend", self._delivery.subscription, visibility_timeout_ms=ms))

    async def _settle(self, how: How) -> None:
        if self.receipt is None:
            return
        link = self._link
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link.core.settle(how, Item(self._delivery, confirmed), link.now())
        link.kick()
        await confirmed

    def __repr__(self) -> str:
        return f"<Message {self.id} queue={self.queue!r} seq={self.seq} attempt={self.attempt}>"


__all__ = ["Action", "Message"]
