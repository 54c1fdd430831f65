"""Request and reply: a request names the queue for its reply, and the reply is matched to it by correlation id.

Each client has one subscription to its reply queue, opened with the first request. The queue is one of the client's
own, created for it if its key allows, or a given one: a work queue that no other client reads, or a stream that several
share. Replies are delivered at most once: a caller that no longer waits has no use for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from push.client.config import Limits
from push.client.core import Delivery, Subscribed, SubscriptionState
from push.client.errors import ApiError, Forbidden, NoReplyQueue, NotFound, PushqError, RequestTimeout
from push.client.message import Message
from push.client.model import Outgoing
from push.client.producer import Producer

log = logging.getLogger("pushq.client")

NAME_PREFIX = "reply."

MakeQueue = Callable[[str, dict[str, Any]], Awaitable[object]]
"""Creates a queue with this name and config; does nothing if it exists."""


class Replies:
    """The requests of one session that wait for a reply."""

    def __init__(self, producer: Producer, make_queue: MakeQueue, limits: Limits, *, given_queue: str | None) -> None:
        self.late = 0
        self._producer = producer
        self._make_queue = make_queue
        self._limits = limits
        self._given_queue = given_queue
        self._own_queue = NAME_PREFIX + producer.queue_part
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._inboxes: dict[str, _Inbox] = {}
        self._opening = asyncio.Lock()
        self._places = asyncio.Semaphore(limits.requests_in_progress_max)

    async def request(self, queue: str, message: Outgoing, timeout_s: float, reply_queue: str | None) -> Message:
        """Publish a request and wait for its reply. Raises `RequestTimeout`, or the error of the publish."""
        self._producer.link.check_loop()
        stage = "waiting for another request to finish"
        try:
            async with asyncio.timeout(timeout_s), self._places:
                stage = "opening the reply queue"
                inbox = await self._inbox(reply_queue or self._given_queue)
                correlation_id = self._producer.next_id()
                reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
                self._waiting[correlation_id] = reply
                inbox.waiting.add(correlation_id)
                try:
                    stage = "publishing the request"
                    await self._ask(queue, message, inbox.queue, correlation_id, timeout_s)
                    stage = "waiting for the reply"
                    return await reply
                finally:
                    del self._waiting[correlation_id]
                    inbox.waiting.discard(correlation_id)
                    if reply.done() and not reply.cancelled():
                        reply.exception()  # the publish may have failed as well, and its error is raised
        except TimeoutError:
            raise RequestTimeout(f'queue "{queue}": no reply within {timeout_s:g} s; timed out while {stage}') from None

    async def _ask(self, queue: str, message: Outgoing, reply_to: str, correlation_id: str, timeout_s: float) -> None:
        """Publishes the request. Unless its sender sets a `ttl`, it expires when its caller stops waiting."""
        asking = msgspec.structs.replace(message, reply_to=reply_to, correlation_id=correlation_id)
        if message.ttl_ms is not None:
            await self._producer.publish(queue, asking)
            return
        ttl_ms = max(1, round(timeout_s * 1000))
        try:
            await self._producer.publish(queue, msgspec.structs.replace(asking, ttl_ms=ttl_ms))
        except ApiError as error:
            if not any(each.pointer.endswith("/ttl_ms") for each in error.problem.errors):
                raise
            await self._producer.publish(queue, asking)  # a stream: its messages do not expire one by one

    async def _inbox(self, given: str | None) -> _Inbox:
        queue = given or self._own_queue
        if (found := self._inboxes.get(queue)) is not None:
            return found
        async with self._opening:
            if (found := self._inboxes.get(queue)) is None:
                if given is None:
                    await self._make_own_queue()
                found = _Inbox(queue, self._producer, self._limits, self._delivered, self._ended)
                await found.opened()
                self._inboxes[queue] = found
        return found

    async def _make_own_queue(self) -> None:
        queue = self._own_queue
        config = {
            "kind": "work",
            "delivery": "at_most_once",
            "message_ttl_ms": self._limits.reply_ttl_ms,
            "tags": {"pushq": "replies"},
        }
        try:
            await self._make_queue(queue, config)
        except Forbidden as error:
            raise NoReplyQueue(
                f'request() may not create its reply queue "{queue}" ({error.detail}). Give the key the scopes '
                f'"manage:{NAME_PREFIX}*" and "consume:{NAME_PREFIX}*", or use a queue that only this client reads: '
                'connect(reply_queue="…")'
            ) from error
        except ApiError as error:
            if error.code != "conflict":  # it exists, with a config that its owner chose
                raise

    def _delivered(self, delivery: Delivery) -> None:
        correlation_id = delivery.message.correlation_id or ""
        reply = self._waiting.get(correlation_id)
        if reply is not None and not reply.done():
            reply.set_result(Message(delivery, self._producer))
        elif self._producer.made(correlation_id):  # on a shared stream most replies are for others
            self.late += 1
            log.debug("late reply queue=%s correlation_id=%s", delivery.subscription.queue, correlation_id)

    def _ended(self, inbox: _Inbox, error: PushqError) -> None:
        """The reply queue is gone: fails the requests that wait on it; the next request opens it anew."""
        self._inboxes.pop(inbox.queue, None)
        for correlation_id in inbox.waiting:
            reply = self._waiting.get(correlation_id)
            if reply is not None and not reply.done():
                reply.set_exception(error)


class _Inbox:
    """The subscription to one reply queue. Its messages are taken as they come, without a task of its own."""

    def __init__(
        self,
        queue: str,
        producer: Producer,
        limits: Limits,
        on_delivery: Callable[[Delivery], None],
        on_end: Callable[[_Inbox, PushqError], None],
    ) -> None:
        self.queue = queue
        self.waiting: set[str] = set()
        self._link = producer.link
        self._on_delivery = on_delivery
        self._on_end = on_end
        self._state = self._link.core.subscribe(Subscribed(queue=queue, credit=limits.reply_credit, ack="auto"))
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link.readers[self._state] = self._changed
        self._link.kick()

    async def opened(self) -> None:
        """Return when the server has accepted the subscription: from now on no reply can be missed."""
        try:
            await self._opened
        except BaseException:
            self._close()
            raise

    def _changed(self) -> None:
        state, link = self._state, self._link
        while (delivery := state.take(link.now())) is not None:
            self._on_delivery(delivery)
        if state.needs_step:
            link.kick()
        if state.ended is not None:
            self._close()
            self._fail(_explained(state, state.ended))
        elif state.was_subscribed and not self._opened.done():
            self._opened.set_result(None)

    def _fail(self, error: PushqError) -> None:
        if self._opened.done():
            self._on_end(self, error)
        else:
            self._opened.set_exception(error)

    def _close(self) -> None:
        self._link.readers.pop(self._state, None)
        self._link.core.unsubscribe(self._state)
        self._link.kick()


def _explained(state: SubscriptionState, error: PushqError) -> PushqError:
    """The error for a refused subscription, in terms of the request."""
    if state.was_subscribed or not isinstance(error, Forbidden | NotFound):
        return error
    explained = NoReplyQueue(
        f'request() cannot read its reply queue "{state.queue}" ({error.detail}). The queue must exist, and the key'
        f' needs the scope "consume:{state.queue}"'
    )
    explained.__cause__ = error
    return explained
