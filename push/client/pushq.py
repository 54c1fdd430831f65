"""The client's main class: `async with connect(url, key) as pushq` publishes, subscribes, and asks for replies."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from push.client.admin import Admin
from push.client.arguments import check_subscribed, start_of
from push.client.config import Limits
from push.client.core import SessionCore, Subscribed
from push.client.core.clock import HybridClock
from push.client.core.numbering import Numbering
from push.client.discover import Key, find_tls, find_url
from push.client.errors import SessionClosed
from push.client.frames import Codec
from push.client.link import Link
from push.client.message import Message, settle_together
from push.client.model import AckMode, Encoding, From, Outgoing, Published, SessionEvent, TransportName, transport_named
from push.client.outgoing import Publication, PublishOptions, one_time, outgoing
from push.client.producer import Producer, PublishIds, checked_name, checked_timeout, checked_trace, random_name
from push.client.replies import Replies
from push.client.runner import Handler, Runner, RunOptions
from push.client.signals import stopped_by_signals
from push.client.subscription import Subscription
from push.client.times import Duration, Moment, milliseconds
from push.client.transports.base import Dial
from push.client.transports.http import HttpDialer
from push.client.transports.poll import PollStream
from push.client.transports.sse import SseStream
from push.client.transports.websocket import Dialer


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `connect`, which explains each."""

    transport: TransportName = "ws"
    encoding: Encoding = "msgpack"
    on_event: Callable[[SessionEvent], None] | None = None
    limits: Limits = Limits()
    tls: ssl.SSLContext | None = None
    producer: str | None = None
    first_number: int | Mapping[str, int] = 1
    number_always: bool = False
    publish_ids: PublishIds = True
    reply_queue: str | None = None


def connect(
    url: str | None = None,
    key: Key = None,
    *,
    token: Key = None,
    transport: TransportName = "ws",
    encoding: Encoding = "msgpack",
    on_event: Callable[[SessionEvent], None] | None = None,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    producer: str | None = None,
    first_number: int | Mapping[str, int] = 1,
    number_always: bool = False,
    publish_ids: PublishIds = True,
    reply_queue: str | None = None,
) -> Pushq:
    """A session with the server, to be used with `async with`.

    `url` defaults to `PUSHQ_URL`, else http://127.0.0.1:8080; `key` to `PUSHQ_KEY`, else the first line of
    `./pushq-data/admin.key`. A `key` that is a function (plain or async) is called again for every connection, and for
    a JWT in time before it expires: the open session goes on with the newer one. `token` is another name for `key`.
    `tls` is the context for https://; without it, `PUSHQ_CA_FILE` names the authorities to trust, else the system's are
    trusted. `on_event` is called with connections, gaps and lost leases; it must not block.

    Messages are numbered and stamped for queues that are sequenced by producer or by clock. A program that continues
    its numbers after a restart names itself with `producer` and gives `first_number`, for all queues or by queue; it
    has to store the numbers itself (`Pushq.next_numbers`). With `number_always` messages for other queues are numbered,
    too. `publish_ids` says whether a message without an id gets one: always, never, or ("auto") while its queue may
    drop duplicates by id. `reply_queue` is the queue for the replies to `request`.
    """
    if key is not None and token is not None:
        raise ValueError("give either a key or a token, not both")
    if isinstance(first_number, int) and first_number < 1:
        raise ValueError(f"sequence numbers start at 1, not at {first_number}")
    options = Options(
        transport=transport_named(transport),
        encoding=encoding,
        on_event=on_event,
        limits=limits or Limits(),
        tls=find_tls(tls),
        producer=None if producer is None else checked_name(producer),
        first_number=first_number,
        number_always=number_always,
        publish_ids=publish_ids,
        reply_queue=reply_queue,
    )
    return Pushq(find_url(url), key if token is None else token, options)


class Pushq:
    """One session. It reconnects by itself, and sends unconfirmed requests again."""

    def __init__(self, url: str, key: Key, options: Options) -> None:
        self._url = url
        self._key = key
        self._options = options
        # Over HTTP the frames become JSON requests.
        self._codec = Codec(options.encoding if options.transport == "ws" else "json")
        self._numbering = Numbering(
            options.producer or random_name(),
            HybridClock(ahead_ms_max=options.limits.clock_ahead_ms_max),
            lambda: time.time_ns() // 1_000_000,
            self._codec.add_fields,
            queues_max=options.limits.publish_queues_max,
            first_number=options.first_number,
            is_always=options.number_always,
        )
        self._opened: tuple[Producer, Replies] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=kind is None)

    async def open(self) -> None:
        """Connect; raises `Unavailable` or the server's refusal. `async with` calls it."""
        if self._opened is not None:
            raise SessionClosed("the session was already used; call connect() again for another one")
        options, link = self._options, self._make_link()
        producer = Producer(link, self._codec, options.limits, ids=options.publish_ids)
        replies = Replies(producer, self._make_queue, options.limits, given_queue=options.reply_queue)
        self._opened = producer, replies
        try:
            await link.open()
        except BaseException:
            await link.close(flush=False)
            raise

    async def close(self, *, flush: bool = True) -> None:
        """Close the session; with `flush`, first wait a few seconds at most for unconfirmed requests."""
        if self._opened is not None:
            await self._link.close(flush=flush)

    # Publishing

    async def publish(
        self,
        queue: str,
        body: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
        timeout: Duration | None = None,
    ) -> Published:
        """Publish one message; returns when it is stored.

        `body` is any JSON value, or bytes; NaN, and bytes inside a value, are refused. `key` is what the message
        belongs to, for order and fair shares; a higher `priority` comes first. The message is delivered after `delay`
        (seconds or a `timedelta`) or at `deliver_at` (a `datetime` with a zone), and expires after `ttl`. `reply_to`
        names the queue for a reply, which repeats `correlation_id`.

        With an `idempotency_key` the same call may be made again, by another process too: it stores nothing, and its
        answer is that of the first with `duplicate`. The message then has a frame of its own.

        `traceparent` and `tracestate` (W3C Trace Context) come back with each delivery of the message.

        `timeout` (seconds or a `timedelta`, 1 ms to 60 s) is how long this caller waits. The server is told the time
        that is left: what it has not begun by then it never will, and nothing is sent again later. If no answer comes
        within a second after that, the client gives up by itself. Messages with different timeouts go in different
        frames. Without a `timeout` the server uses its own, `dispatch.timeout_ms`, and the client repeats a message for
        a minute.

        Publishes of many tasks share frames. A message without an answer (a cut, a 504) is sent again with the same id
        and number: a queue that drops duplicates stores it once, any other at least once. Raises `ApiError` for a
        refusal of this message, `OutcomeUnknown` if it may have been stored.
        """
        producer = self._producer
        message = Outgoing(
            body=body,
            id=producer.id_for(queue) if id is None and idempotency_key is None else id,
            key=key,
            priority=priority,
            delay_ms=delay_ms if delay is None else one_time("delay", delay, delay_ms),
            deliver_at=deliver_at,
            ttl_ms=ttl_ms if ttl is None else one_time("ttl", ttl, ttl_ms),
            headers=headers,
            content_type=content_type,
            reply_to=reply_to,
            correlation_id=correlation_id,
        )
        trace, timeout_s = checked_trace(traceparent, tracestate), checked_timeout(timeout)
        return await producer.publish(queue, message, idempotency_key, trace, timeout_s)

    async def publish_many(
        self, queue: str, messages: Iterable[Outgoing | Any], *, timeout: Duration | None = None
    ) -> list[Published]:
        """Publish messages in order; anything that is not an `Outgoing` is the body of one.

        Returns when all are stored. Raises `PublishManyFailed` with each one's result if some were refused. A message
        that the server refused temporarily (overloaded, say) is sent again after those that were sent meanwhile, unless
        the queue is sequenced by producer or by clock: there it keeps its place.

        `timeout` is as with `publish`, for each message by itself, from when the window had room for it.
        """
        return await self._producer.publish_many(queue, messages, checked_timeout(timeout))

    async def request(
        self,
        queue: str,
        body: Any,
        timeout: Duration = 30.0,
        *,
        reply_queue: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> Message:
        """Publish a request and return its reply, a `Message` with nothing to settle. The responder calls
        `message.reply`. Raises `RequestTimeout` if no reply comes in time; a later one is dropped and counted.

        The reply comes to `reply_queue`, else to that of `connect`: a queue that only this client reads, or a stream
        that several clients share. Without either the client creates the queue `reply.<producer>`, which needs the
        scope `manage:reply.*`, and `consume:reply.*` to read it. The options are those of `publish`; `ttl` defaults to
        `timeout`, so that no consumer works on a request whose caller has left.
        """
        _, replies = self._session
        seconds = milliseconds(timeout) / 1000
        return await replies.request(queue, outgoing(body, **options), seconds, reply_queue)

    @property
    def late_replies(self) -> int:
        """Replies that came after their request had timed out, or a second time."""
        return 0 if self._opened is None else self._opened[1].late

    @property
    def producer(self) -> str:
        """The name under which messages are numbered."""
        return self._numbering.producer

    @property
    def next_numbers(self) -> dict[str, int]:
        """For each queue that was published to, the number of its next message: a program stores these and passes them
        to `connect` with `producer` and `first_number`. Messages in flight have lower numbers."""
        return self._numbering.next_numbers

    # Consuming

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

        `credit` bounds how many messages are held here and not yet settled. While a message waits or is being handled,
        its lease is extended, for `handler_limit_s` (5 minutes) after it was handed out. `from_` is where a stream
        begins. In a `group` of a stream messages are settled as on a work queue; in a group with offsets, an ack covers
        all earlier messages of its partition.
        """
        limits = self._options.limits
        asked = Subscribed(
            queue=queue,
            credit=limits.subscription_credit if credit is None else credit,
            ack=ack,
            group=group,
            start=start_of(from_),
            visibility_timeout_ms=visibility_timeout_ms,
            extend_leases=extend_leases,
            handler_limit_s=limits.handler_limit_s if handler_limit_s is None else handler_limit_s,
        )
        check_subscribed(asked.credit, asked.ack, limits)
        link = self._link
        state = link.core.subscribe(asked)
        link.kick()
        return Subscription(state, self._producer)

    async def run(self, queue: str, handler: Handler, **options: Unpack[RunOptions]) -> None:
        """Handle a queue's messages until SIGINT or SIGTERM: `await pushq.run("orders", handle, concurrency=8)`.

        `handler` is an `async def` of one message. When it returns, the message is acked. When it raises, the message
        goes back with the class and the text of the exception as reason, and comes again after the queue's
        `retry_backoff_ms`; if the queue has none, after 0.5 to 1 s, doubled with each attempt, up to a minute
        (`Limits.retry_base_s`, `retry_cap_s`). A message that the handler settled itself stays settled. The event
        `HandlerFailed` has the exception.

        `concurrency` (10) handlers run side by side; `prefetch` more messages wait here, for handlers so short that the
        round trip to the server matters. Messages of one key run one after the other if the queue is `strict`, and so
        do all messages of a group with offsets, and of a subscription without receipts (`ack="auto"`, a stream without
        a group). `in_order` (True, False or "key") overrides this. The other options are those of `subscribe`.

        The first signal stops: no new handler begins, running ones have `drain_s` (20 s), and waiting messages go back
        without an attempt. A handler that takes longer is cancelled, and its message goes back at once. A second signal
        cancels all now. Then `run` returns. Outside the main thread there are no signals; `runner` has a `stop`.

        Raises the error that ended the subscription for good (`NotFound`, `Unauthenticated` …), once the handlers have
        ended.
        """
        runner = self.runner(queue, handler, **options)
        with stopped_by_signals(runner.stop):
            await runner.run()

    def runner(self, queue: str, handler: Handler, **options: Unpack[RunOptions]) -> Runner:
        """As `run`, without signals, for a program that controls its own end: `async with pushq.runner(…):` handles
        messages while the block runs, and drains at its end; `stop`, `state`, `active`, `done` and `failed` are
        available meanwhile."""
        return Runner(self.subscribe, queue, handler, self._options.limits, **options)

    async def ack(self, messages: Sequence[Message], *, publish: Iterable[Publication] = ()) -> None:
        """Ack messages of one subscription in one request; returns when the server has confirmed all of them.

        `publish` is stored in the same transaction, as with `Message.ack`. Raises `LeaseLost`, whose `ids` are the
        messages that other consumers may have.
        """
        await settle_together(messages, publish)

    @property
    def session(self) -> str | None:
        """The server's id of the session; None before the first connection."""
        return self._link.core.session if self._opened is not None else None

    @property
    def _session(self) -> tuple[Producer, Replies]:
        if self._opened is None:
            raise SessionClosed("the session is not open: use it inside `async with connect(...) as pushq`")
        return self._opened

    @property
    def _producer(self) -> Producer:
        return self._session[0]

    @property
    def _link(self) -> Link:
        return self._session[0].link

    def _make_link(self) -> Link:
        options = self._options
        core = SessionCore(options.limits, random.random, self._numbering)
        dial = self._make_dial()
        link = Link(core, dial, self._key, options.limits, options.on_event)
        if isinstance(dial, Dialer):
            dial.on_met = link.met
        return link

    def _make_dial(self) -> Dial:
        options = self._options
        if options.transport == "ws":
            return Dialer(self._url, self._codec, options.limits, tls=options.tls)
        stream = SseStream if options.transport == "sse" else PollStream
        return HttpDialer(self._url, stream, options.limits, tls=options.tls)

    async def _make_queue(self, name: str, config: Mapping[str, Any]) -> None:
        async with Admin(self._url, self._key, tls=self._options.tls) as admin:
            await admin.create_queue(name, config)
