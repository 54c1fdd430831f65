"""What a user holds: `async with connect(url, key) as pushq` publishes and subscribes."""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from push.client.config import Limits
from push.client.core import SessionCore, Subscribed
from push.client.core.publisher import Entry
from push.client.discover import Key, find_url
from push.client.errors import Problem, PublishManyFailed, PushqError, SessionClosed, TooLarge
from push.client.frames import Codec
from push.client.link import Link
from push.client.model import AckMode, Encoding, From, Outgoing, Published, SessionEvent, TransportName
from push.client.subscription import Subscription
from push.client.transports.base import Dial
from push.client.transports.http import HttpDialer
from push.client.transports.poll import PollStream
from push.client.transports.sse import SseStream
from push.client.transports.websocket import Dialer

ID_PREFIX_BYTES = 12


def connect(
    url: str | None = None,
    key: Key = None,
    *,
    transport: TransportName = "ws",
    encoding: Encoding = "msgpack",
    on_event: Callable[[SessionEvent], None] | None = None,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
) -> Pushq:
    """A session with the server, to be used with `async with`.

    Without `url` it is `PUSHQ_URL`, else http://127.0.0.1:8080; without `key` it is `PUSHQ_KEY`, else the first line of
    `./pushq-data/admin.key`. A `key` that is a function (plain or async) is asked again for every connection.
    `on_event` is told of connections, gaps and lost leases; it must not block.
    """
    return Pushq(find_url(url), key, transport, encoding, on_event, limits or Limits(), tls)


class Pushq:
    """One session: it reconnects by itself, and what is unconfirmed goes again."""

    def __init__(
        self,
        url: str,
        key: Key,
        transport: TransportName,
        encoding: Encoding,
        on_event: Callable[[SessionEvent], None] | None,
        limits: Limits,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._limits = limits
        # Over HTTP the frames become JSON requests.
        self._codec = Codec(encoding if transport == "ws" else "json")
        dial: Dial
        if transport == "ws":
            dial = Dialer(url, self._codec, limits, tls=tls)
        else:
            stream = SseStream if transport == "sse" else PollStream
            dial = HttpDialer(url, stream, limits, tls=tls)
        self._make_link: Callable[[], Link] = lambda: Link(
            SessionCore(limits, random.random), dial, key, limits, on_event
        )
        self._open_link: Link | None = None
        self._id_prefix = secrets.token_urlsafe(ID_PREFIX_BYTES)
        self._ids = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=kind is None)

    async def open(self) -> None:
        """Connect; raises `Unavailable` or the server's refusal. `async with` does it."""
        if self._open_link is not None:
            raise SessionClosed("the session was opened before; connect() again for another one")
        self._open_link = self._make_link()
        try:
            await self._open_link.open()
        except BaseException:
            await self._open_link.close(flush=False)
            raise

    async def close(self, *, flush: bool = True) -> None:
        """Leave; with `flush` once what is unconfirmed was confirmed, waiting a few seconds at most."""
        if self._open_link is not None:
            await self._open_link.close(flush=flush)

    async def publish(
        self,
        queue: str,
        body: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        priority: int | None = None,
        delay_ms: int | None = None,
        deliver_at: str | None = None,
        ttl_ms: int | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
    ) -> Published:
        """Publish one message; returns when it is stored.

        `body` is any JSON value, or bytes. Publishes of many tasks travel together. The message is sent again after a
        cut, with the same id: it is stored at least once, and more than once where the queue does not drop duplicates.
        Raises `ApiError` for a refusal, `OutcomeUnknown` when it may have been stored.
        """
        message = self._encode(
            Outgoing(
                body=body,
                id=id if id is not None else self._next_id(),
                key=key,
                headers=headers,
                content_type=content_type,
                priority=priority,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                ttl_ms=ttl_ms,
                reply_to=reply_to,
                correlation_id=correlation_id,
            )
        )
        link = self._link
        await link.room()
        ticket = _One()
        entry = link.core.publish(queue, message, ticket, link.now())
        link.kick()
        try:
            return await ticket.stored
        except asyncio.CancelledError:
            entry.wanted = False
            raise

    async def publish_many(self, queue: str, messages: Iterable[Outgoing | Any]) -> list[Published]:
        """Publish messages in order; anything that is not an `Outgoing` is the body of one.

        Returns when all are stored. When some were refused, raises `PublishManyFailed` with each one's result.
        What the server refused for the moment (overloaded, say) goes again behind what was sent meanwhile.
        """
        link = self._link
        many = _Many()
        entries: list[Entry] = []
        try:
            for index, message in enumerate(messages):
                encoded = self._encode(self._with_id(message))
                if link.core.publisher.window_left <= 0:
                    link.kick()
                    await link.room()
                entries.append(link.core.publish(queue, encoded, many.slot(index), link.now()))
            link.kick()
            return await many.all_stored()
        except BaseException:
            for entry in entries:
                entry.wanted = False
            raise

    def subscribe(
        self,
        queue: str,
        *,
        credit: int | None = None,
        group: str | None = None,
        from_: From | None = None,
        ack: AckMode = "manual",
        visibility_timeout_ms: int | None = None,
        extend_leases: bool = True,
        handler_limit_s: float | None = None,
    ) -> Subscription:
        """Have messages pushed: `async for message in pushq.subscribe("orders")`.

        `credit` bounds how many are held here and not yet settled. While a message waits or is worked on, its lease
        is extended, for `handler_limit_s` (5 minutes) after it was handed out. `from_` is where a stream begins.
        """
        asked = Subscribed(
            queue=queue,
            credit=self._limits.subscription_credit if credit is None else credit,
            ack=ack,
            group=group,
            start=from_,
            visibility_timeout_ms=visibility_timeout_ms,
            extend_leases=extend_leases,
            handler_limit_s=self._limits.handler_limit_s if handler_limit_s is None else handler_limit_s,
        )
        if asked.credit < 1:
            raise ValueError(f"credit must be at least 1, not {asked.credit}")
        link = self._link
        state = link.core.subscribe(asked)
        link.kick()
        return Subscription(state, link)

    @property
    def session(self) -> str | None:
        """The server's id of the session; None before the first connection."""
        return self._open_link.core.session if self._open_link is not None else None

    @property
    def _link(self) -> Link:
        if self._open_link is None:
            raise SessionClosed("the session is not open: use it inside `async with connect(...) as pushq`")
        return self._open_link

    def _next_id(self) -> str:
        self._ids += 1
        return f"{self._id_prefix}-{self._ids:x}"

    def _with_id(self, message: Outgoing | Any) -> Outgoing:
        if not isinstance(message, Outgoing):
            return Outgoing(body=message, id=self._next_id())
        return message if message.id is not None else msgspec.structs.replace(message, id=self._next_id())

    def _encode(self, message: Outgoing) -> msgspec.Raw:
        encoded = self._codec.message(message)
        size = len(memoryview(encoded))
        if size > self._limits.message_bytes_max:
            detail = f"the message has {size} bytes, the client sends at most {self._limits.message_bytes_max}"
            raise TooLarge(Problem(code="message-too-large", status=413, detail=detail))
        return encoded


class _One:
    """The waiter of one publish."""

    __slots__ = ("stored",)

    def __init__(self) -> None:
        self.stored: asyncio.Future[Published] = asyncio.get_running_loop().create_future()

    def resolve(self, result: Published | PushqError) -> None:
        if self.stored.done():
            return
        if isinstance(result, Published):
            self.stored.set_result(result)
        else:
            self.stored.set_exception(result)


class _Many:
    """The waiter of one `publish_many`: a result for each message, and one future for all."""

    def __init__(self) -> None:
        self.results: list[Published | PushqError | None] = []
        self._open = 0
        self._is_complete = False
        self._all: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def slot(self, index: int) -> _Slot:
        assert index == len(self.results)
        self.results.append(None)
        self._open += 1
        return _Slot(self, index)

    def resolve(self, index: int, result: Published | PushqError) -> None:
        self.results[index] = result
        self._open -= 1
        if self._open == 0 and self._is_complete and not self._all.done():
            self._all.set_result(None)

    async def all_stored(self) -> list[Published]:
        self._is_complete = True
        if self._open:
            await self._all
        stored = [result for result in self.results if isinstance(result, Published)]
        if len(stored) == len(self.results):
            return stored
        raise PublishManyFailed([result for result in self.results if result is not None])


class _Slot:
    """One message's place in a `publish_many`."""

    __slots__ = ("_index", "_many")

    def __init__(self, many: _Many, index: int) -> None:
        self._many = many
        self._index = index

    def resolve(self, result: Published | PushqError) -> None:
        self._many.resolve(self._index, result)
