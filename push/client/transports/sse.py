"""A subscription as server-sent events: one long GET whose events become `deliver` frames."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import msgspec

from push.client.discover import reason
from push.client.errors import Problem, problem_from_frame, problem_of
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

_json = Codec("json")


class SseStream:
    """One subscription's event stream. When it breaks, the core requests a new one from the last cursor."""

    def __init__(self, transport: HttpTransport, frame: Subscribe, sub: int) -> None:
        self.sub = sub
        self.queue = frame.queue
        self._transport = transport
        self._frame = frame
        self._credit = frame.credit or 1
        self._more_credit = asyncio.Event()
        self._outstanding = Outstanding()
        self._has_begun = False

    async def run(self) -> None:
        try:
            await self._read()
        except httpx2.RequestError as error:
            self._end(Problem(code="unavailable", status=503, detail=reason(error)))

    def give_credit(self, n: int) -> None:
        self._credit += n
        self._more_credit.set()

    def settled(self, receipts: Sequence[str], *, is_ack: bool) -> None:
        self._outstanding.settle(receipts, is_ack=is_ack)

    def begun(self, receipts: Sequence[str]) -> None:
        self._outstanding.begin(receipts)

    def held(self) -> list[Held]:
        return self._outstanding.held()

    def leave(self) -> Leaving:
        return Leaving.NOTHING  # the end of the response tells the server

    def late(self) -> list[str]:
        return []

    async def _read(self) -> None:
        transport, frame = self._transport, self._frame
        config = await transport.config(self.queue)
        path = f"/v1/queues/{quote(self.queue, safe='')}/events"
        params, headers = _request(frame)
        timeout = httpx2.Timeout(transport.limits.http_timeout_s, read=transport.limits.sse_silence_s)
        async with transport.http.stream("GET", path, params=params, headers=headers, timeout=timeout) as response:
            if response.status_code >= 400:
                body = await response.aread()
                transport.emit(Error(id=frame.id, problem=problem_of(body, response.status_code, response.headers)))
                return
            mode = await transport.group_mode(self.queue, frame.group)
            self._outstanding.commits = mode == "offsets"
            ok = Ok(
                id=frame.id,
                sub=self.sub,
                visibility_timeout_ms=frame.visibility_timeout_ms or config.visibility_timeout_ms,
                mode=mode,
                ordering=config.ordering,
                retry_backoff_ms=config.retry_backoff_ms,
            )
            transport.emit(ok)
            self._has_begun = True
            async for event in httpx2.EventSource(response, transport.limits.frame_bytes_max):
                if not await self._event(event):
                    return
        self._end(Problem(code="unavailable", status=503, detail="the event stream ended"))

    async def _event(self, event: httpx2.ServerSentEvent) -> bool:
        """Hand one event to the core; False if it was the last."""
        transport = self._transport
        if event.event == "message":
            await self._deliver(_json.message_of(event.data), event.id or None)
            return True
        data = _fields(event.data)
        if event.event == "gap":
            where = data.get("partition")
            transport.emit(GapFrame(sub=self.sub, start=data.get("from"), end=data.get("to"), partition=where))
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

    async def _deliver(self, message: WireMessage | UnreadMessage, cursor: str | None) -> None:
        """Delivers a message. Without a receipt no ack will slow the server down, so reading stops while the user has
        enough."""
        if message.receipt is not None:
            if self._frame.ack != "auto":
                self._outstanding.hold([message])
            cursor = None  # the queue keeps the position
        else:
            while self._credit <= 0:
                self._more_credit.clear()
                await self._more_credit.wait()
            self._credit -= 1
        if isinstance(message, UnreadMessage):
            self._transport.emit(Deliver(sub=self.sub, messages=[], cursor=cursor, unread=[message]))
        else:
            self._transport.emit(Deliver(sub=self.sub, messages=[message], cursor=cursor))

    def _end(self, problem: Problem) -> None:
        """Ends the subscription. Before its `Ok` the core knows it only by the id of the request."""
        ended = Ended(sub=self.sub, problem=problem) if self._has_begun else Error(id=self._frame.id, problem=problem)
        self._transport.emit(ended)


def _request(frame: Subscribe) -> tuple[dict[str, Any], dict[str, str]]:
    """Query and headers of the GET; a cursor is sent as `Last-Event-ID`, as a browser does."""
    params: dict[str, Any] = {}
    headers = {"Accept": "text/event-stream"}
    if frame.credit is not None:
        params["credit"] = frame.credit
    if frame.ack is not None:
        params["ack"] = frame.ack
    if frame.attempts is not None:
        params["attempts"] = frame.attempts
    if frame.group is not None:
        params["group"] = frame.group
    if frame.visibility_timeout_ms is not None:
        params["visibility_timeout_ms"] = frame.visibility_timeout_ms
    start = frame.start
    if isinstance(start, Mapping) and "cursor" in start:
        headers["Last-Event-ID"] = str(start["cursor"])
    elif isinstance(start, Mapping):
        params["from"] = ":".join(str(part) for item in start.items() for part in item)
    elif start is not None:
        params["from"] = start
    return params, headers


def _fields(data: str) -> dict[str, Any]:
    value = msgspec.json.decode(data) if data else {}
    return value if isinstance(value, dict) else {}
