"""Frames over plain HTTP, for networks that do not let WebSockets through.

Each request frame becomes one call of the HTTP API, and its answer becomes the frame that the core waits for; a
subscription becomes a `Stream`: server-sent events or repeated long-polls.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol
from urllib.parse import quote

import httpx2
import msgspec

from push.client.config import Limits
from push.client.discover import reason, redirected
from push.client.errors import NOT_PUSHQ, ApiError, Problem, api_error, problem_of
from push.client.frames import (
    Ack,
    AnyClientFrame,
    AnyServerFrame,
    Begin,
    Connect,
    ConnectedFrame,
    Credit,
    Error,
    Extend,
    Nack,
    Ok,
    Publish,
    PublishedItem,
    Refresh,
    SettleResult,
    Subscribe,
    Unsubscribe,
)
from push.client.transports.addresses import Addresses, addressed
from push.client.transports.base import Cut
from push.client.transports.outstanding import Held

NO_PINGS_MS = 24 * 3600 * 1000
"""HTTP has no pings: each request and each stream has a timeout of its own."""

SESSION = "http"


_NO_HEADERS: Mapping[str, str] = {}


class PublishAnswer(msgspec.Struct):
    messages: list[PublishedItem]
    sequencing: str | None = None
    dedupe: str | None = None


class SettleAnswer(msgspec.Struct):
    results: list[SettleResult]


class QueueConfig(msgspec.Struct):
    """What a subscription must know about its queue that no answer of `receive` or `events` contains."""

    visibility_timeout_ms: int | None = None
    retry_backoff_ms: int | None = None
    ordering: str | None = None
    delivery: str | None = None


class QueueAnswer(msgspec.Struct):
    config: QueueConfig


class GroupAnswer(msgspec.Struct):
    name: str
    mode: str | None = None


class GroupsAnswer(msgspec.Struct):
    items: list[GroupAnswer]


class Leaving(Enum):
    """What may still arrive for a subscription that ended."""

    NOTHING = "nothing"
    SOON = "soon"
    """An answer may be in transit. If not, the client does not wait for what the server finds later."""
    LATER = "later"
    """An answer will come, and its messages can be given back."""


class Stream(Protocol):
    """One subscription over HTTP."""

    sub: int
    queue: str

    async def run(self) -> None:
        """Deliver until cancelled, or until the server ends it."""

    def give_credit(self, n: int) -> None:
        """The user consumed `n` messages that have no receipt."""

    def settled(self, receipts: Sequence[str], *, is_ack: bool) -> None:
        """These are no longer held."""

    def begun(self, receipts: Sequence[str]) -> None:
        """The user has begun with these."""

    def held(self) -> list[Held]:
        """What is held and not settled."""

    def leave(self) -> Leaving:
        """Nothing more is wanted."""

    def late(self) -> list[str]:
        """Receipts that came after `leave`."""


class _Turn:
    """The publishes to one queue, which wait for each other."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


MakeStream = Callable[["HttpTransport", Subscribe, int], Stream]


class HttpTransport:
    """A session made of HTTP requests. Like a socket, it is lost when one of them gets no answer."""

    def __init__(self, http: httpx2.AsyncClient, make_stream: MakeStream, limits: Limits) -> None:
        self.http = http
        self.limits = limits
        self._make_stream = make_stream
        self._frames: asyncio.Queue[AnyServerFrame | Cut | ApiError] = asyncio.Queue()
        self._streams: dict[int, tuple[Stream, asyncio.Task[None]]] = {}
        """By subscription. One that ended stays while its messages are being handled."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._late: dict[asyncio.Task[None], asyncio.Task[None]] = {}
        """Task that waits for a late answer → task that reads it."""
        self._last_sub = 0
        self._publishing: dict[str, _Turn] = {}

    async def send(self, frames: Sequence[AnyClientFrame]) -> None:
        for frame in frames:
            self._send(frame)

    async def receive(self) -> list[AnyServerFrame]:
        found = await self._frames.get()
        if isinstance(found, Cut | ApiError):
            raise found
        return [found]

    async def close(self) -> None:
        """Give back what is held: over HTTP the server does not notice that this consumer left."""
        for sub in list(self._streams):
            self._leave(sub)
        if self._late:
            await asyncio.wait(self._late.values(), timeout=self.limits.poll_leave_s)
            for reading in self._late.values():
                reading.cancel()
        if waiting := self._farewells | self._late.keys():
            await asyncio.wait(waiting, timeout=self.limits.close_timeout_s)
        self.cut("closed")

    def abort(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.cut("aborted")

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.http.aclose()

    def emit(self, frame: AnyServerFrame) -> None:
        """Hands a frame to the core."""
        self._frames.put_nowait(frame)

    def cut(self, reason: str) -> None:
        """The server no longer answers."""
        self._frames.put_nowait(Cut(reason))

    async def post(
        self, queue: str, action: str, body: Any, *, wait_s: float = 0.0, headers: Mapping[str, str] = _NO_HEADERS
    ) -> httpx2.Response:
        """One authenticated POST below the queue's path."""
        return await self.http.post(
            f"/v1/queues/{quote(queue, safe='')}/{action}",
            content=msgspec.json.encode(body),
            headers={"Content-Type": "application/json", **headers},
            timeout=self.limits.http_timeout_s + wait_s,
        )

    async def config(self, queue: str) -> QueueConfig:
        """The queue's config, or its defaults if the key may consume but not view."""
        response = await self.http.get(f"/v1/queues/{quote(queue, safe='')}", timeout=self.limits.http_timeout_s)
        if response.status_code >= 400:
            return QueueConfig()
        return msgspec.json.decode(response.content, type=QueueAnswer).config

    async def group_mode(self, queue: str, group: str | None) -> str | None:
        """Whether the group has offsets or leases. None without a group, or if the key may consume but not view."""
        if group is None:
            return None
        path = f"/v1/queues/{quote(queue, safe='')}/groups"
        response = await self.http.get(path, timeout=self.limits.http_timeout_s)
        if response.status_code >= 400:
            return None
        groups = msgspec.json.decode(response.content, type=GroupsAnswer).items
        return next((found.mode for found in groups if found.name == group), None)

    def _send(self, frame: AnyClientFrame) -> None:
        match frame:
            case Connect():
                self._spawn(self._connect, frame)
            case Subscribe():
                self._subscribe(frame)
            case Begin():
                for stream, _ in self._streams.values():
                    stream.begun(frame.receipts)  # messages of a broken stream are begun under its successor's number
            case Unsubscribe():
                self._leave(frame.sub)
            case Credit():
                if frame.sub in self._streams:
                    self._streams[frame.sub][0].give_credit(frame.n)
            case Publish():
                self._spawn(self._publish, frame)
            case Refresh():
                self.http.headers["Authorization"] = f"Bearer {frame.token}"  # for the next request, and those after it
            case Ack() | Nack() | Extend():
                self._spawn(self._settle, frame)
            case _:
                pass  # pings have no use here

    async def _connect(self, frame: Connect) -> None:
        """Any authenticated call tells whether the server answers and the key is valid."""
        response = await self.http.get("/v1/queues", params={"limit": 1}, timeout=self.limits.http_timeout_s)
        status = response.status_code
        if status == 200 and response.headers.get("content-type", "").startswith("application/json"):
            # Receipts outlive the connection over HTTP, so every connection resumes the same session.
            self.emit(ConnectedFrame(session=SESSION, id=frame.id, ping_ms=NO_PINGS_MS))
            return
        problem = _problem(response)
        if status >= 500 or status == 429:
            retry_s = api_error(problem).retry_after_s or 0.0
            self._frames.put_nowait(Cut(problem.detail, retry_s=retry_s, problem=problem))
        elif status == 401:
            self.emit(Error(problem=problem))
            self._frames.put_nowait(Cut("unauthenticated", code=4501))
        else:
            location = response.headers.get("location") if 300 <= status < 400 else None
            detail = redirected(str(self.http.base_url), location, "is not a Pushq server")
            self._frames.put_nowait(api_error(Problem(status=status, code=NOT_PUSHQ, detail=detail)))

    async def _publish(self, frame: Publish) -> None:
        # One request at a time for each queue: concurrent requests would be stored in any order.
        turn = self._publishing.setdefault(frame.queue, _Turn())
        turn.waiting += 1
        clock, headers, wait_s = asyncio.get_running_loop().time, _headers(frame), 0.0
        asked = clock()
        try:
            async with turn.lock:
                if frame.timeout_ms is not None:
                    wait_s = max(0.001, frame.timeout_ms / 1000 - (clock() - asked))
                    headers["Pushq-Timeout-Ms"] = str(round(wait_s * 1000))
                body = {"messages": list(frame.messages)}
                response = await self.post(frame.queue, "messages", body, wait_s=wait_s, headers=headers)
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._publishing[frame.queue]
        if response.status_code >= 400:
            self.emit(Error(id=frame.id, problem=_problem(response)))
            return
        answer = msgspec.json.decode(response.content, type=PublishAnswer)
        ok = Ok(id=frame.id, messages=answer.messages, sequencing=answer.sequencing, dedupe=answer.dedupe)
        self.emit(ok)

    async def _settle(self, frame: Ack | Nack | Extend) -> None:
        action, body = _settling(frame)
        response = await self.post(frame.queue, action, body)
        if response.status_code >= 400:
            self.emit(Error(id=frame.id, problem=_problem(response)))
            return
        answer = msgspec.json.decode(response.content, type=SettleAnswer)
        over = frame.receipts
        if isinstance(frame, Extend):  # an ended lease is not settled here: its message comes again
            over = [result.receipt for result in answer.results if not result.ok]
        for sub, (stream, _) in list(self._streams.items()) if over else ():
            if stream.queue == frame.queue:
                stream.settled(over, is_ack=isinstance(frame, Ack))
                self._forget(sub)
        self.emit(Ok(id=frame.id, results=answer.results))

    async def _give_back(self, stream: Stream) -> None:
        for tried in (True, False):
            if receipts := [held.receipt for held in stream.held() if held.is_begun is tried]:
                await self.post(stream.queue, "nack", {"receipts": receipts, "tried": tried})

    async def _give_back_late(self, stream: Stream, reading: asyncio.Task[None], patience_s: float | None) -> None:
        """Gives back the messages of a late answer: breaking the request off would leave what the server leased to it
        without a consumer until the leases end."""
        await asyncio.wait([reading], timeout=patience_s)
        reading.cancel()
        if receipts := stream.late():
            await self.post(stream.queue, "nack", {"receipts": receipts, "delay_ms": 0, "tried": False})

    def _subscribe(self, frame: Subscribe) -> None:
        self._last_sub += 1
        sub = self._last_sub
        stream = self._make_stream(self, frame, sub)
        reading = self._spawn(stream.run)
        self._streams[sub] = (stream, reading)
        reading.add_done_callback(lambda _: self._forget(sub))

    def _forget(self, sub: int) -> None:
        """Drops a stream that ended and holds nothing: else a consumer that reconnects a thousand times would keep a
        thousand."""
        stream, reading = self._streams.get(sub, (None, None))
        if stream is not None and reading is not None and reading.done() and not stream.held():
            del self._streams[sub]

    def _leave(self, sub: int) -> None:
        if (found := self._streams.pop(sub, None)) is not None:
            stream, reading = found
            leaving = stream.leave()
            if leaving is Leaving.NOTHING:
                reading.cancel()
            else:
                patience_s = self.limits.poll_leave_s if leaving is Leaving.SOON else None
                late = self._spawn(self._give_back_late, stream, reading, patience_s)
                self._late[late] = reading
                late.add_done_callback(lambda late: self._late.pop(late, None))
            farewell = self._spawn(self._give_back, stream)
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)

    def _spawn(self, work: Callable[..., Awaitable[None]], *args: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guard(work, *args), name="pushq request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """A request without an answer is a lost connection; so is an answer that is not Pushq's."""
        try:
            await work(*args)
        except httpx2.RequestError as error:
            self.cut(reason(error))
        except msgspec.MsgspecError as error:
            self.cut(f"malformed response: {error}")


class HttpDialer:
    """Makes `HttpTransport`s for one URL. Every address of its name is tried; each call begins with the next one."""

    def __init__(self, url: str, make_stream: MakeStream, limits: Limits, *, tls: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._make_stream = make_stream
        self._limits = limits
        self._tls = tls
        self._addresses = Addresses(url)

    async def __call__(self, token: str | None) -> HttpTransport:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connections = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        http = httpx2.AsyncClient(
            base_url=self._url,
            headers=headers,
            verify=True if self._tls is None else self._tls,
            limits=connections,
            transport=addressed(self._addresses, self._url, self._limits, tls=self._tls, connections=connections),
        )
        return HttpTransport(http, self._make_stream, self._limits)


def _problem(response: httpx2.Response) -> Problem:
    return problem_of(response.content, response.status_code, response.headers)


def _settling(frame: Ack | Nack | Extend) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"receipts": list(frame.receipts)}
    if isinstance(frame, Ack):
        return "ack", body if frame.publish is None else body | {"publish": list(frame.publish)}
    if isinstance(frame, Extend):
        return "extend", body | {"visibility_timeout_ms": frame.visibility_timeout_ms}
    if frame.delay_ms is not None:
        body["delay_ms"] = frame.delay_ms
    if frame.reason is not None:
        body["reason"] = frame.reason
    if not frame.tried:
        body["tried"] = False
    return "nack", body


def _headers(frame: Publish) -> dict[str, str]:
    """The headers for a frame's fields that apply to all messages, without its timeout: some of that may pass before
    the frame is sent."""
    found: dict[str, str] = {}
    if frame.idempotency_key is not None:
        # A string of a structured field (RFC 9651), so that it may begin with a quote.
        escaped = frame.idempotency_key.replace("\\", "\\\\").replace('"', '\\"')
        found["Idempotency-Key"] = f'"{escaped}"'
    if frame.traceparent is not None:
        found["traceparent"] = frame.traceparent
    if frame.tracestate is not None:
        found["tracestate"] = frame.tracestate
    return found
