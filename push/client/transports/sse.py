"""A subscription as server-sent events: one long GET whose events become `deliver` frames."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import msgspec

from push.client.errors import Problem, problem_from_frame, problem_of
from push.client.frames import Deliver, Ended, Error, GapFrame, Ok, ResetFrame, Subscribe, WireMessage

if TYPE_CHECKING:
    from push.client.transports.http import HttpTransport

_message = msgspec.json.Decoder(WireMessage)


class SseStream:
    """One subscription's event stream. When it breaks, the core asks for a new one from the last cursor."""

    def __init__(self, transport: HttpTransport, frame: Subscribe, sub: int) -> None:
        self.sub = sub
        self.queue = frame.queue
        self._transport = transport
        self._frame = frame
        self._credit = frame.credit or 1
        self._more_credit = asyncio.Event()
        self._outstanding: dict[str, None] = {}

    async def run(self) -> None:
        try:
            await self._read()
        except httpx2.TransportError as error:
            self._end(Problem(code="unavailable", status=503, detail=str(error) or type(error).__name__))

    def give_credit(self, n: int) -> None:
        self._credit += n
        self._more_credit.set()

    def settled(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            self._outstanding.pop(receipt, None)

    def outstanding(self) -> list[str]:
        return list(self._outstanding)

    async def _read(self) -> None:
        transport = self._transport
        path = f"/v1/queues/{quote(self.queue, safe='')}/events"
        params, headers = _request(self._frame)
        timeout = httpx2.Timeout(transport.limits.http_timeout_s, read=transport.limits.sse_silence_s)
        async with transport.http.stream("GET", path, params=params, headers=headers, timeout=timeout) as response:
            if response.status_code >= 400:
                body = await response.aread()
                problem = problem_of(body, response.status_code, response.headers)
                transport.emit(Error(id=self._frame.id, problem=problem))
                return
            transport.emit(Ok(id=self._frame.id, sub=self.sub))
            async for event in httpx2.EventSource(response, transport.limits.frame_bytes_max):
                if not await self._event(event):
                    return
        self._end(Problem(code="unavailable", status=503, detail="the event stream ended"))

    async def _event(self, event: httpx2.ServerSentEvent) -> bool:
        """Hand one event to the core; False when it was the last."""
        transport = self._transport
        if event.event == "message":
            await self._deliver(_message.decode(event.data), event.id or None)
            return True
        data = _fields(event.data)
        if event.event == "gap":
            transport.emit(GapFrame(sub=self.sub, start=data.get("from"), end=data.get("to")))
        elif event.event == "reset":
            transport.emit(ResetFrame(sub=self.sub, cursor=data.get("cursor") or event.id or None))
        elif event.event == "ended":
            self._end(problem_from_frame(data.get("problem", data)))
            return False
        elif event.event == "bye":
            retry_ms = event.retry if event.retry is not None else data.get("retry_ms")
            reason = str(data.get("reason") or "the server says goodbye")
            self._end(Problem(code="draining", status=503, detail=reason, retry_after_ms=retry_ms))
            return False
        return True

    async def _deliver(self, message: WireMessage, cursor: str | None) -> None:
        """Without a receipt no ack will tell the server to wait, so reading stops while the user has enough."""
        if message.receipt is not None:
            self._outstanding[message.receipt] = None
        else:
            while self._credit <= 0:
                self._more_credit.clear()
                await self._more_credit.wait()
            self._credit -= 1
        self._transport.emit(Deliver(sub=self.sub, messages=[message], cursor=cursor))

    def _end(self, problem: Problem) -> None:
        self._transport.emit(Ended(sub=self.sub, problem=problem))


def _request(frame: Subscribe) -> tuple[dict[str, Any], dict[str, str]]:
    """Query and headers of the GET; a cursor travels as `Last-Event-ID`, as a browser's would."""
    params: dict[str, Any] = {"ack": frame.ack or "manual"}
    headers = {"Accept": "text/event-stream"}
    # For a stream without a group the server's outbox is the bound and reading no further the brake.
    if frame.credit is not None:
        params["credit"] = frame.credit
    if frame.group is not None:
        params["group"] = frame.group
    if frame.visibility_timeout_ms is not None:
        params["visibility_timeout_ms"] = frame.visibility_timeout_ms
    if isinstance(frame.start, dict) and "cursor" in frame.start:
        headers["Last-Event-ID"] = str(frame.start["cursor"])
    elif isinstance(frame.start, dict):
        params["from"] = ":".join(str(part) for item in frame.start.items() for part in item)
    elif frame.start is not None:
        params["from"] = frame.start
    return params, headers


def _fields(data: str) -> dict[str, Any]:
    value = msgspec.json.decode(data) if data else {}
    return value if isinstance(value, dict) else {}
