"""A WebSocket client for tests at the level of frames: it sends objects, and returns the next frame of a type."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2
import msgspec
from websockets.asyncio.client import ClientConnection, connect

from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

FRAME_SECONDS_MAX = PATIENCE_S


def create_queue(server: PushqServer, name: str, **config: Any) -> None:
    answer = httpx2.put(f"{server.url}/v1/queues/{name}", json=config, headers=server.headers)
    assert answer.status_code in (200, 201), answer.text


class Client:
    """A connected session. Unrequested frames wait in `frames`."""

    def __init__(
        self, server: PushqServer, *, resume: str | None = None, encoding: str = "json", key: str | None = None
    ):
        """`key`: a key other than the server's own."""
        self._server = server
        self._key = server.key if key is None else key
        self._resume = resume
        self._codec: Any = msgspec.json if encoding == "json" else msgspec.msgpack
        self._encoding = encoding
        self._ids = itertools.count(1)
        self.frames: list[dict[str, Any]] = []
        self.socket: ClientConnection
        self.connected: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        protocol = f"pushq.v1.{self._encoding}"
        self.socket = await connect(self._server.ws_url, subprotocols=[protocol], max_size=None, close_timeout=1)  # type: ignore[list-item]
        resume = {} if self._resume is None else {"resume": {"session": self._resume}}
        await self.send(type="connect", token=self._key, **resume)
        self.connected = await self.next("connected")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.socket.close()

    @property
    def session(self) -> str:
        return str(self.connected["session"])

    async def send(self, **frame: Any) -> None:
        data = self._codec.encode(frame)
        await self.socket.send(data.decode() if self._encoding == "json" else data)

    async def ask(self, **frame: Any) -> dict[str, Any]:
        """Sends a request and returns its `ok` or `error`."""
        number = next(self._ids)
        await self.send(**frame, id=number)
        while True:
            answer = await self.next("ok", "error")
            if answer.get("id") == number:
                return answer

    async def publish(self, queue: str, *bodies: Any) -> dict[str, Any]:
        answer = await self.ask(type="publish", queue=queue, messages=[{"body": body} for body in bodies])
        assert answer["type"] == "ok", answer
        return answer

    async def subscribe(self, queue: str, **options: Any) -> dict[str, Any]:
        answer = await self.ask(type="subscribe", queue=queue, **options)
        assert answer["type"] == "ok", answer
        return answer

    async def next(self, *types: str, seconds: float = FRAME_SECONDS_MAX) -> dict[str, Any]:
        """The next frame of one of these types; other frames stay in the queue."""
        with anyio.fail_after(seconds):
            while True:
                for place, frame in enumerate(self.frames):
                    if frame["type"] in types:
                        return self.frames.pop(place)
                data = await self.socket.recv()
                frames = self._codec.decode(data)
                self.frames += frames if isinstance(frames, list) else [frames]

    async def messages(self, count: int, seconds: float = FRAME_SECONDS_MAX) -> list[dict[str, Any]]:
        """The next `count` delivered messages."""
        got: list[dict[str, Any]] = []
        while len(got) < count:
            got += (await self.next("deliver", seconds=seconds))["messages"]
        return got

    async def is_quiet(self, seconds: float = 0.3) -> bool:
        """Whether nothing is delivered for a while."""
        with anyio.move_on_after(seconds):
            self.frames.append(await self.next("deliver", seconds=seconds * 2))
            return False
        return True

    async def cut(self) -> None:
        """Breaks the connection abruptly."""
        self.socket.transport.abort()
        await self.socket.wait_closed()
