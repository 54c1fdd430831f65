"""A subscription as long-polls: `receive` again and again, for as many messages as there is credit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from push.client.errors import problem_of
from push.client.frames import (
    Codec,
    Deliver,
    Ended,
    Error,
    GapFrame,
    Ok,
    ResetFrame,
    Subscribe,
    UnreadMessage,
    WireMessage,
)
from push.client.transports.http import Leaving
from push.client.transports.outstanding import Held, Outstanding

if TYPE_CHECKING:
    from push.client.transports.http import HttpTransport


class ReceiveAnswer(msgspec.Struct):
    """The answer of `receive`. `cursor`: for a stream, where the next poll goes on."""

    messages: list[WireMessage]
    cursor: str | None = None
    resume: str | None = None
    unread: list[UnreadMessage] = []
    """Set by this client, never by the server."""

    def both(self) -> list[WireMessage | UnreadMessage]:
        """All messages of the answer."""
        return [*self.messages, *self.unread]


class _Parts(msgspec.Struct):
    """An answer whose messages are decoded one by one."""

    messages: list[msgspec.Raw]
    cursor: str | None = None
    resume: str | None = None


_json = Codec("json")
_decode = msgspec.json.Decoder(ReceiveAnswer).decode


def read_answer(data: bytes) -> ReceiveAnswer:
    """Decodes the answer of a poll. Raises `MsgspecError` if it is not Pushq's."""
    try:
        return _decode(data)
    except msgspec.ValidationError:
        parts = msgspec.json.decode(data, type=_Parts)
    messages, unread = _json.messages_of(parts.messages)
    return ReceiveAnswer(messages, parts.cursor, parts.resume, unread)


class PollStream:
    """Polls for one subscription. Credit is how many messages may be held; a settled receipt or a consumed message
    returns it."""

    def __init__(self, transport: HttpTransport, frame: Subscribe, sub: int) -> None:
        self.sub = sub
        self.queue = frame.queue
        self._transport = transport
        self._frame = frame
        self._credit = frame.credit or 1
        self._more_credit = asyncio.Event()
        self._outstanding = Outstanding()
        self._start = frame.start
        self._is_asking = False
        self._is_leaving = False
        self._may_be_late = False
        self._late: list[str] = []

    async def run(self) -> None:
        transport, frame = self._transport, self._frame
        config = await transport.config(self.queue)
        # Messages without receipts cannot be given back: those in a late answer would be lost.
        self._may_be_late = config.delivery in ("at_least_once", "exactly_once")
        is_first = True
        while True:
            # The first answer comes at once: it says whether the key may consume.
            response = await self._receive(0 if is_first else transport.limits.poll_wait_ms)
            if response.status_code >= 400:
                problem = problem_of(response.content, response.status_code, response.headers)
                transport.emit(
                    Error(id=frame.id, problem=problem) if is_first else Ended(sub=self.sub, problem=problem)
                )
                return
            answer = read_answer(response.content)
            if self._is_leaving:
                self._late = [message.receipt for message in answer.both() if message.receipt is not None]
                return
            if frame.group is not None:
                self._start = None  # the group moves on, and the server knows its position
            elif answer.cursor is not None:
                self._start = {"cursor": answer.cursor}
            if is_first:
                mode = await transport.group_mode(self.queue, frame.group)
                self._outstanding.commits = mode == "offsets"
                ok = Ok(
                    id=frame.id,
                    sub=self.sub,
                    cursor=answer.cursor,
                    visibility_timeout_ms=config.visibility_timeout_ms,
                    mode=mode,
                    ordering=config.ordering,
                    retry_backoff_ms=config.retry_backoff_ms,
                )
                transport.emit(ok)
                is_first = False
            self._tell_loss(answer)
            await self._deliver(answer)

    def give_credit(self, n: int) -> None:
        self._credit += n
        self._more_credit.set()

    def settled(self, receipts: Sequence[str], *, is_ack: bool) -> None:
        if over := self._outstanding.settle(receipts, is_ack=is_ack):
            self.give_credit(over)

    def begun(self, receipts: Sequence[str]) -> None:
        self._outstanding.begin(receipts)

    def held(self) -> list[Held]:
        return self._outstanding.held()

    def leave(self) -> Leaving:
        self._is_leaving = True
        if not self._is_asking:
            return Leaving.NOTHING
        return Leaving.LATER if self._may_be_late else Leaving.SOON

    def late(self) -> list[str]:
        return self._late

    async def _receive(self, wait_ms: int) -> httpx2.Response:
        while self._credit <= 0:
            self._more_credit.clear()
            await self._more_credit.wait()
        body: dict[str, Any] = {"max": min(self._credit, self._transport.limits.poll_messages_max), "wait_ms": wait_ms}
        if self._frame.visibility_timeout_ms is not None:
            body["visibility_timeout_ms"] = self._frame.visibility_timeout_ms
        if self._frame.group is not None:
            body["group"] = self._frame.group
        if self._start is not None:
            body["from"] = self._start
        self._is_asking = True
        try:
            return await self._transport.post(self.queue, "receive", body, wait_s=wait_ms / 1000)
        finally:
            self._is_asking = False

    def _tell_loss(self, answer: ReceiveAnswer) -> None:
        """Reports that the stream could not go on from our position."""
        if answer.resume == "gap":
            self._transport.emit(GapFrame(sub=self.sub))
        elif answer.resume == "reset":
            self._transport.emit(ResetFrame(sub=self.sub, cursor=answer.cursor))

    async def _deliver(self, answer: ReceiveAnswer) -> None:
        came = answer.both()
        if not came:
            return
        self._credit -= len(came)
        receipts = [message.receipt for message in came if message.receipt is not None]
        if self._frame.ack == "auto" and receipts:
            if not await self._ack(receipts):
                return
            self._credit += len(receipts)
        else:
            self._outstanding.hold(came)
            if not receipts and answer.cursor is None:
                self._credit += len(came)  # at most once: they were settled before they came
        deliver = Deliver(sub=self.sub, messages=answer.messages, cursor=answer.cursor, unread=answer.unread)
        self._transport.emit(deliver)

    async def _ack(self, receipts: list[str]) -> bool:
        """Sends automatic acks: `receive` has none of its own."""
        response = await self._transport.post(self.queue, "ack", {"receipts": receipts})
        if response.status_code >= 400:
            problem = problem_of(response.content, response.status_code, response.headers)
            self._transport.emit(Ended(sub=self.sub, problem=problem))
        return response.status_code < 400
