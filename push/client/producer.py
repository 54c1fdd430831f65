"""The publishing side of a session: encodes messages, hands them to the core, and resolves the waiting callers."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from push.client.arguments import check_fields
from push.client.bodies import fit, refused
from push.client.config import Limits
from push.client.core.numbering import Numbered
from push.client.core.publisher import Entry
from push.client.core.settling import Step
from push.client.errors import Problem, PublishManyFailed, PushqError, TooLarge, Unavailable
from push.client.frames import Codec
from push.client.link import Link
from push.client.model import Outgoing, Published, TraceContext
from push.client.outgoing import sendable
from push.client.times import Duration, milliseconds

PublishIds = bool | Literal["auto"]
"""Whether a message without an id gets one. "auto": until the server has said that its queue does not drop duplicates
by id."""

RANDOM_BYTES = 12
NAME_BYTES_MAX = 256
MESSAGES_PER_REQUEST_MAX = 1000
TIMEOUT_MS_MAX = 60_000

_IDEMPOTENCY_KEY = re.compile(r"[ -~]{1,255}")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[ -~]{1,512}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def random_name() -> str:
    """A random name of 96 bits that begins with a letter: fit for an id and for part of a queue's name."""
    return "p" + secrets.token_urlsafe(RANDOM_BYTES)


def checked_name(producer: str) -> str:
    """The producer's name. Raises `ValueError` for one that no server accepts."""
    size = len(producer.encode())
    if not 0 < size <= NAME_BYTES_MAX:
        raise ValueError(f"a producer name must have 1 to {NAME_BYTES_MAX} bytes, not {size}")
    return producer


def checked_key(idempotency_key: str) -> str:
    """An idempotency key. Raises `ValueError` for one that no header can carry."""
    if _IDEMPOTENCY_KEY.fullmatch(idempotency_key) is None:
        raise ValueError("an idempotency key must have 1 to 255 printable ASCII characters, such as a UUID")
    return idempotency_key


def checked_trace(traceparent: str | None, tracestate: str | None) -> TraceContext | None:
    """The trace context of a message. Raises `ValueError` for an invalid W3C Trace Context."""
    if traceparent is None:
        if tracestate is not None:
            raise ValueError("tracestate requires traceparent; give both")
        return None
    if _TRACEPARENT.fullmatch(traceparent) is None:
        raise ValueError(f"invalid traceparent {traceparent[:80]!r}: use 00-TRACE-SPAN-FLAGS in hexadecimal digits")
    if not tracestate:
        return TraceContext(traceparent, None)
    if _TRACESTATE.fullmatch(tracestate) is None:
        raise ValueError("tracestate must have 1 to 512 printable ASCII characters")
    return TraceContext(traceparent, tracestate)


def checked_timeout(timeout: Duration | None) -> float | None:
    """Seconds, in whole milliseconds. Raises `ValueError` for a time that no server accepts."""
    if timeout is None:
        return None
    ms = milliseconds(timeout)
    if not 1 <= ms <= TIMEOUT_MS_MAX:
        raise ValueError(
            f"the publish timeout must be between 0.001 and {TIMEOUT_MS_MAX // 1000} s, not {ms / 1000:g} s"
        )
    return ms / 1000


class Producer:
    """The publishing side of a session."""

    def __init__(self, link: Link, codec: Codec, limits: Limits, *, ids: PublishIds) -> None:
        self.link = link
        self._codec = codec
        self._limits = limits
        self._ids = ids
        self._id_prefix = random_name()
        self._last_id = 0

    @property
    def name(self) -> str:
        return self.link.core.numbering.producer

    @property
    def receipts_max(self) -> int:
        """How many receipts one request takes."""
        return self._limits.settle_frame_receipts_max

    @property
    def queue_part(self) -> str:
        """A name of this producer's own that is valid in a queue's name."""
        return self.name if _PLAIN_NAME.fullmatch(self.name) else self._id_prefix

    async def publish(
        self,
        queue: str,
        message: Outgoing,
        idempotency_key: str | None = None,
        trace: TraceContext | None = None,
        timeout_s: float | None = None,
    ) -> Published:
        """Send one message; returns when it is stored. The wait for room in the window is part of `timeout_s`."""
        link = self.link
        link.check_loop()
        if idempotency_key is not None:
            checked_key(idempotency_key)
        encoded = self._encode(queue, message, is_named=idempotency_key is not None)
        began = link.now()
        if link.core.publisher.window_left <= 0:
            await self._room(timeout_s)
        ticket = _One()
        now = link.now() if timeout_s is None else began
        entry = link.core.publish(queue, encoded, ticket, now, idempotency_key, trace, timeout_s)
        link.kick()
        try:
            return await ticket.stored
        except asyncio.CancelledError:
            link.give_up(queue, [entry])
            raise

    async def publish_many(
        self, queue: str, messages: Iterable[Outgoing | Any], timeout_s: float | None = None
    ) -> list[Published]:
        """Send messages in order; anything that is not an `Outgoing` is the body of one."""
        link = self.link
        link.check_loop()
        many = _Many()
        entries: list[Entry] = []
        try:
            for index, message in enumerate(messages):
                given = message if isinstance(message, Outgoing) else Outgoing(body=message, id=self.id_for(queue))
                encoded = self._encode(queue, given)
                if link.core.publisher.window_left <= 0:
                    link.kick()
                    await link.room()
                slot, now = many.slot(index), link.now()
                entries.append(link.core.publish(queue, encoded, slot, now, timeout_s=timeout_s))
            link.kick()
            return await many.all_stored()
        except BaseException:
            link.give_up(queue, entries)
            raise

    def step(self, parts: Sequence[tuple[str, Sequence[Outgoing]]]) -> Step | None:
        """What an ack publishes, encoded; None if it publishes nothing. Raises `TooLarge` if it fits in no frame."""
        count = sum(len(messages) for _, messages in parts)
        if not count:
            return None
        encoded = [(queue, [Numbered(self._encode(queue, each)) for each in messages]) for queue, messages in parts]
        size = sum(len(memoryview(each.message)) for _, messages in encoded for each in messages)
        if count > MESSAGES_PER_REQUEST_MAX or size > self._limits.message_bytes_max:
            raise _too_large(
                f"the ack publishes {count} messages with {size} bytes in total; the client sends at most "
                f"{MESSAGES_PER_REQUEST_MAX} messages with {self._limits.message_bytes_max} bytes"
            )
        return Step(encoded)

    def id_for(self, queue: str) -> str | None:
        """A new unique id; None if the queue has no use for one."""
        if self._ids is False or (self._ids == "auto" and not self.link.core.numbering.drops_repeats(queue)):
            return None
        return self.next_id()

    def next_id(self) -> str:
        """A new id: 96 random bits of this client's and a count."""
        self._last_id += 1
        return f"{self._id_prefix}-{self._last_id:x}"

    def made(self, id: str) -> bool:
        """Whether this is an id of `next_id`."""
        return id.startswith(f"{self._id_prefix}-")

    async def _room(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.link.room()
        except TimeoutError:
            detail = f"too many messages were unconfirmed for {timeout_s:g} s: this one was not sent"
            raise Unavailable(detail) from None

    def _encode(self, queue: str, message: Outgoing, *, is_named: bool = False) -> msgspec.Raw:
        """Encodes a message. One that `is_named` by its call's idempotency key gets no id: a repeat with another id
        would be another message."""
        if message.deliver_at is not None:
            message = sendable(message)
        if not is_named and message.id is None and (id := self.id_for(queue)) is not None:
            message = msgspec.structs.replace(message, id=id)
        encoded = self._encoded(message)
        body = fit(message.body)
        if body is not message.body:
            encoded = self._encoded(msgspec.structs.replace(message, body=body))
        size = len(memoryview(encoded))
        if size > self._limits.message_bytes_max:
            raise _too_large(f"the message has {size} bytes; the client sends at most {self._limits.message_bytes_max}")
        return encoded

    def _encoded(self, message: Outgoing) -> msgspec.Raw:
        try:
            return self._codec.message(message)
        except OverflowError:
            check_fields(priority=message.priority, delay_ms=message.delay_ms, ttl_ms=message.ttl_ms)
            raise refused("an integer beyond 64 bits cannot be encoded in MessagePack; send it as a string") from None
        except UnicodeEncodeError:
            raise refused("the string contains an unpaired surrogate; send it as bytes") from None
        except RecursionError:
            raise refused("the value is nested too deeply, or contains itself") from None


def _too_large(detail: str) -> TooLarge:
    return TooLarge(Problem(code="message-too-large", status=413, detail=detail))


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
