"""A subscription as long-polls: `receive` again and again, for as many messages as there is credit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from push.client.errors import Problem, problem_of
from push.client.frames import Deliver, Ended, Error, Ok, Subscribe, WireMessage

if TYPE_CHECKING:
    from push.client.transports.http import HttpTransport


class ReceiveAnswer(msgspec.Struct):
    messages: list[WireMessage]


class PollStream:
    """One subscription's polling. Credit is what may be held; a settled receipt or a consumed message gives it back."""

    def __init__(self, transport: HttpTransport, frame: Subscribe, sub: int) -> None:
        self.sub = sub
        self.queue = frame.queue
        self._transport = transport
        self._frame = frame
        self._credit = frame.credit or 1
        self._more_credit = asyncio.Event()
        self._outstanding: dict[str, None] = {}

    async def run(self) -> None:
        transport, frame = self._transport, self._frame
        if frame.start is not None:
            detail = "long-poll receives from queues and groups; it cannot begin at a position of a stream"
            transport.emit(Error(id=frame.id, problem=Problem(code="invalid-request", status=400, detail=detail)))
            return
        is_first = True
        while True:
            wait_ms = 0 if is_first else transport.limits.poll_wait_ms  # the first answer says whether we may
            response = await self._receive(wait_ms)
            if response.status_code >= 400:
                problem = problem_of(response.content, response.status_code, response.headers)
                sub_ended = Ended(sub=self.sub, problem=problem)
                transport.emit(Error(id=frame.id, problem=problem) if is_first else sub_ended)
                return
            if is_first:
                transport.emit(Ok(id=frame.id, sub=self.sub))
                is_first = False
            await self._deliver(msgspec.json.decode(response.content, type=ReceiveAnswer).messages)

    def give_credit(self, n: int) -> None:
        self._credit += n
        self._more_credit.set()

    def settled(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            if receipt in self._outstanding:
                del self._outstanding[receipt]
                self.give_credit(1)

    def outstanding(self) -> list[str]:
        return list(self._outstanding)

    async def _receive(self, wait_ms: int) -> httpx2.Response:
        while self._credit <= 0:
            self._more_credit.clear()
            await self._more_credit.wait()
        body: dict[str, Any] = {"max": min(self._credit, self._transport.limits.poll_messages_max), "wait_ms": wait_ms}
        if self._frame.visibility_timeout_ms is not None:
            body["visibility_timeout_ms"] = self._frame.visibility_timeout_ms
        if self._frame.group is not None:
            body["group"] = self._frame.group
        return await self._transport.post(self.queue, "receive", body, wait_s=wait_ms / 1000)

    async def _deliver(self, messages: list[WireMessage]) -> None:
        if not messages:
            return
        self._credit -= len(messages)
        receipts = [message.receipt for message in messages if message.receipt is not None]
        if self._frame.ack == "auto" and receipts:
            response = await self._transport.post(self.queue, "ack", {"receipts": receipts})
            if response.status_code >= 400:
                problem = problem_of(response.content, response.status_code, response.headers)
                self._transport.emit(Ended(sub=self.sub, problem=problem))
                return
            messages = [msgspec.structs.replace(message, receipt=None) for message in messages]
        else:
            self._outstanding |= dict.fromkeys(receipts)
        self._transport.emit(Deliver(sub=self.sub, messages=messages))
