"""Consumers over four transports (WebSocket with JSON or MessagePack, SSE, long-poll), all without the SDK.

Received messages are normalized: each is its dictionary, with `body` as the published value (bytes stay bytes),
whatever the transport.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol, Self

import httpx2
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.support.patience import PATIENCE_S

TRANSPORTS = ("ws-json", "ws-msgpack", "sse", "poll")
ANSWER_S_MAX = PATIENCE_S
POLL_S = 5.0
QUIET_S = 0.3
"""If the count is unknown, a consumer is assumed to have received everything this long after the last message."""

Frame = dict[str, Any]
Message = dict[str, Any]


class Server(Protocol):
    """What a consumer needs to know about a running `pushq serve`."""

    @property
    def url(self) -> str: ...
    @property
    def ws_url(self) -> str: ...
    @property
    def key(self) -> str:
        """The admin key."""

    @property
    def headers(self) -> dict[str, str]: ...


def http_client(server: Server, key: str | None = None) -> httpx2.AsyncClient:
    """A client with the admin key, or with another key."""
    headers = server.headers if key is None else {"Authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=20, trust_env=False)


async def call(http: httpx2.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """Returns the JSON of a response, which must be successful."""
    answer = await http.request(method, f"/v1/queues/{path}", json=body)
    assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
    return answer.json() if answer.content else None


class Socket:
    """A WebSocket session: requests receive their responses, all other frames go to `inbox`."""

    def __init__(self, ws: ClientConnection, *, is_binary: bool):
        self.ws = ws
        self.is_binary = is_binary
        self.inbox: asyncio.Queue[Frame] = asyncio.Queue()
        self.session = ""
        self.resumed = False
        self._answers: dict[Any, asyncio.Future[Frame]] = {}
        self._number = 0
        self._reading = asyncio.create_task(self._read(), name="socket")

    @classmethod
    @asynccontextmanager
    async def open(
        cls, server: Server, *, binary: bool = False, resume: str | None = None, **options: Any
    ) -> AsyncIterator[Socket]:
        async with raw_socket(server, "pushq.v1.msgpack" if binary else "pushq.v1.json", **options) as ws:
            self = cls(ws, is_binary=binary)
            try:
                resumed: dict[str, Any] = {"resume": {"session": resume}} if resume is not None else {}
                connected = await self.ask(type="connect", token=server.key, **resumed)
                assert connected["type"] == "connected", connected
                self.session, self.resumed = connected["session"], connected["resumed"]
                yield self
            finally:
                self._reading.cancel()
                with suppress(asyncio.CancelledError):
                    await self._reading

    async def _read(self) -> None:
        try:
            async for data in self.ws:
                found = msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data)
                for frame in found if isinstance(found, list) else [found]:
                    self._take(frame)
        except ConnectionClosed:
            pass
        closed = {"type": "closed", "code": self.ws.close_code, "reason": self.ws.close_reason}
        self.inbox.put_nowait(closed)
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_result(closed)

    def _take(self, frame: Frame) -> None:
        waiting = self._answers.pop(frame.get("id"), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(frame)
        elif frame["type"] == "deliver":
            now = time.monotonic()
            for message in frame["messages"]:
                self.inbox.put_nowait(
                    {"type": "message", "sub": frame["sub"], "message": plain(message), "came_at": now}
                )
        elif frame["type"] == "ping":
            pass
        else:
            self.inbox.put_nowait(frame)

    async def send(self, frame: Any) -> None:
        await self.ws.send(msgspec.msgpack.encode(frame) if self.is_binary else json.dumps(frame))

    async def ask(self, *, within_s: float = ANSWER_S_MAX, **frame: Any) -> Frame:
        """Sends a request and waits for its response, an `ok` or an `error`."""
        self._number += 1
        waiting: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._answers[self._number] = waiting
        await self.send({**frame, "id": self._number})
        async with asyncio.timeout(within_s):
            return await waiting

    async def frame(self, kind: str, seconds: float = ANSWER_S_MAX) -> Frame:
        """The next frame of this type; earlier frames of other types are dropped."""
        async with asyncio.timeout(seconds):
            while True:
                frame = await self.inbox.get()
                if frame["type"] == kind:
                    return frame
                assert frame["type"] != "closed", f"closed while waiting for {kind}: {frame}"

    async def messages(self, count: int, seconds: float = ANSWER_S_MAX) -> list[Message]:
        return await gathered(self.inbox, count, seconds)


@asynccontextmanager
async def raw_socket(server: Server, *subprotocols: str, **options: Any) -> AsyncIterator[ClientConnection]:
    """A WebSocket to the server, before any frame was sent."""
    usual: dict[str, Any] = {"compression": None, "ping_interval": None, "max_size": None, "proxy": None}
    names = [Subprotocol(name) for name in subprotocols]
    how = usual | {"close_timeout": 1} | options
    url = how.pop("url", server.ws_url)
    async with connect(url, subprotocols=names or None, **how) as ws:
        yield ws


async def gathered(
    inbox: asyncio.Queue[Frame], count: int, seconds: float, quiet_s: float | None = None
) -> list[Message]:
    """Up to `count` messages: fewer if the time is up, or if none arrived for `quiet_s` after the previous one. Frames
    of other types are put back."""
    found: list[Message] = []
    others: list[Frame] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while len(found) < count:
                async with asyncio.timeout(quiet_s if found else None):
                    frame = await inbox.get()
                if frame["type"] == "message":
                    found.append(frame["message"])
                else:
                    others.append(frame)
                    if frame["type"] == "closed":
                        break
    for frame in others:
        inbox.put_nowait(frame)
    return found


def plain(message: Message) -> Message:
    """Replaces `body_base64` by `body`."""
    encoded = message.pop("body_base64", None)
    if encoded is not None:
        message["body"] = b64decode(encoded, validate=True)
    return message


class Consumer(Protocol):
    """A consumer of one queue."""

    async def take(self, count: int, seconds: float = ANSWER_S_MAX) -> list[Message]:
        """Exactly `count` messages; fewer only if the time is up."""

    async def some(self, count: int, seconds: float = ANSWER_S_MAX) -> list[Message]:
        """At most `count` messages: those that follow the first one without a long pause."""

    async def ack(self, receipts: list[str]) -> list[bool]: ...
    async def nack(self, receipts: list[str], delay_ms: int = 0, **more: Any) -> list[bool]: ...
    async def farewell(self) -> Frame:
        """The server's last word: `ended`, `bye`, or `refused` with the problem."""

    async def wait(self) -> None:
        """Starts waiting for messages; only a poll needs to be told."""

    async def leave(self) -> None:
        """Disconnects the way its transport does."""


class Pushed:
    """A consumer that the server pushes to, which waits for messages all the time."""

    inbox: asyncio.Queue[Frame]

    async def take(self, count: int, seconds: float = ANSWER_S_MAX) -> list[Message]:
        return await gathered(self.inbox, count, seconds)

    async def some(self, count: int, seconds: float = ANSWER_S_MAX) -> list[Message]:
        return await gathered(self.inbox, count, seconds, QUIET_S)

    async def wait(self) -> None:
        """Does nothing: it is already waiting."""

    async def farewell(self) -> Frame:
        async with asyncio.timeout(ANSWER_S_MAX):
            while (frame := await self.inbox.get())["type"] not in ("ended", "bye", "closed"):
                pass
        return frame


class SocketConsumer(Pushed):
    def __init__(self, socket: Socket, queue: str):
        self._socket = socket
        self.inbox = socket.inbox
        self._queue = queue
        self.subscribed: Frame = {}

    @classmethod
    async def begin(cls, socket: Socket, queue: str, **how: Any) -> Self:
        self = cls(socket, queue)
        self.subscribed = await socket.ask(type="subscribe", queue=queue, **how)
        assert self.subscribed["type"] == "ok", self.subscribed
        return self

    async def ack(self, receipts: list[str]) -> list[bool]:
        return _verdicts(await self._socket.ask(type="ack", queue=self._queue, receipts=receipts))

    async def nack(self, receipts: list[str], delay_ms: int = 0, **more: Any) -> list[bool]:
        answer = await self._socket.ask(type="nack", queue=self._queue, receipts=receipts, delay_ms=delay_ms, **more)
        return _verdicts(answer)

    async def leave(self) -> None:
        await self._socket.ws.close()


class HttpConsumer:
    """What SSE and long-poll have in common: acks are POST requests."""

    def __init__(self, http: httpx2.AsyncClient, queue: str):
        self._http = http
        self._queue = queue

    async def ack(self, receipts: list[str]) -> list[bool]:
        return _verdicts(await call(self._http, "POST", f"{self._queue}/ack", {"receipts": receipts}))

    async def nack(self, receipts: list[str], delay_ms: int = 0, **more: Any) -> list[bool]:
        body = {"receipts": receipts, "delay_ms": delay_ms, **more}
        return _verdicts(await call(self._http, "POST", f"{self._queue}/nack", body))


class EventConsumer(Pushed, HttpConsumer):
    def __init__(self, http: httpx2.AsyncClient, queue: str, query: dict[str, Any], headers: dict[str, str]):
        super().__init__(http, queue)
        self.inbox: asyncio.Queue[Frame] = asyncio.Queue()
        self.started: asyncio.Future[httpx2.Response] = asyncio.get_running_loop().create_future()
        self._ids: dict[int, str | None] = {}
        self._reading = asyncio.create_task(self._read(query, headers), name="events")

    async def _read(self, query: dict[str, Any], headers: dict[str, str]) -> None:
        url = f"/v1/queues/{self._queue}/events"
        async with self._http.stream("GET", url, params=query, headers=headers, timeout=None) as response:
            self.started.set_result(response)
            event: dict[str, str] = {}
            with suppress(httpx2.HTTPError):
                async for line in response.aiter_lines():
                    if line:
                        name, _, value = line.partition(": ")
                        event[name] = value
                    elif event:
                        self._take(event)
                        event = {}
            self.inbox.put_nowait({"type": "closed", "code": response.status_code})

    def _take(self, event: dict[str, str]) -> None:
        if "event" not in event:
            return  # a comment
        data = json.loads(event["data"])
        if event["event"] == "message":
            self._ids[data["seq"]] = event.get("id")
            self.inbox.put_nowait({"type": "message", "message": plain(data)})
        else:
            self.inbox.put_nowait({**data, "type": event["event"], "retry": event.get("retry")})

    def id_of(self, message: Message) -> str | None:
        """The cursor of a message's event."""
        return self._ids[message["seq"]]

    async def leave(self) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading


class PollConsumer(HttpConsumer):
    """Polls until it has the requested messages. Between requests the server does not know it."""

    def __init__(self, http: httpx2.AsyncClient, queue: str, **options: Any):
        super().__init__(http, queue)
        self._options = options
        self._waiting: asyncio.Task[httpx2.Response] | None = None
        self.cursor: str | None = None

    async def _receive(self, limit: int, seconds: float) -> httpx2.Response:
        options = self._options if self.cursor is None else self._options | {"from": {"cursor": self.cursor}}
        body = {"max": limit, "wait_ms": int(seconds * 1000), **options}
        return await self._http.post(f"/v1/queues/{self._queue}/receive", json=body)

    async def take(self, count: int, seconds: float = ANSWER_S_MAX) -> list[Message]:
        found: list[Message] = []
        deadline = time.monotonic() + seconds
        while len(found) < count:
            left_s = deadline - time.monotonic()
            came = await self._next(count - len(found), min(POLL_S, max(0.0, left_s)))
            found += came
            if not came and left_s < POLL_S:
                break
        return found

    async def some(self, count: int, seconds: float = ANSWER_S_MAX) -> list[Message]:
        found: list[Message] = []
        deadline = time.monotonic() + seconds
        while not found and (left_s := deadline - time.monotonic()) > 0:
            found = await self._next(count, min(POLL_S, left_s))
        while len(found) < count and (came := await self._next(count - len(found), QUIET_S)):
            found += came
        return found

    async def _next(self, limit: int, seconds: float) -> list[Message]:
        answer = (await self._receive(limit, seconds)).raise_for_status().json()
        self.cursor = answer.get("cursor")
        return [plain(message) for message in answer["messages"]]

    async def wait(self) -> None:
        self._waiting = asyncio.create_task(self._receive(1, 2 * POLL_S), name="poll")

    async def farewell(self) -> Frame:
        assert self._waiting is not None, "a poll consumer exists only while it waits"
        answer = await self._waiting
        if answer.status_code != 200:
            return {"type": "refused", "problem": answer.json()}
        return {"type": "bye", "messages": answer.json()["messages"]}

    async def leave(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            with suppress(asyncio.CancelledError):
                await self._waiting


@asynccontextmanager
async def consuming(
    server: Server, transport: str, queue: str, *, credit: int | None = None, **how: Any
) -> AsyncIterator[SocketConsumer | EventConsumer | PollConsumer]:
    """A consumer of a queue over a transport. `how` takes the fields of a subscribe frame, such as `from`."""
    async with AsyncExitStack() as stack:
        allowed = {} if credit is None else {"credit": credit}
        if transport.startswith("ws"):
            opened = await stack.enter_async_context(Socket.open(server, binary=transport == "ws-msgpack"))
            yield await SocketConsumer.begin(opened, queue, **allowed, **how)
            return
        http = await stack.enter_async_context(http_client(server))
        if transport == "poll":
            poll = PollConsumer(http, queue, **how)
            yield poll
            await poll.leave()
            return
        query = allowed | {name: _query(value) for name, value in how.items()}
        events = EventConsumer(http, queue, query, {})
        answered = await asyncio.wait_for(asyncio.shield(events.started), ANSWER_S_MAX)
        assert answered.status_code == 200, await answered.aread()
        yield events
        await events.leave()


def _query(value: Any) -> Any:
    """A start position as in a URL: `seq:42`."""
    return ":".join(str(part) for part in next(iter(value.items()))) if isinstance(value, dict) else value


def _verdicts(answer: Any) -> list[bool]:
    rows = answer["results"]
    assert all(row["ok"] is True or (row["ok"] is False and row["error"] == "stale-receipt") for row in rows), rows
    return [row["ok"] for row in rows]
