"""Thousands of consumers in one process, which reconnect as the SDKs do after being cut off or refused.

`python -m tests.support.crowd PORT KEY QUEUE CLIENTS` subscribes them. Each line on stdin is a command: `cut` closes
all sockets abruptly; `state` and `seen` answer with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import uvloop
from websockets.frames import Frame, Opcode

from push.client.config import Limits
from push.client.core.backoff import delay_s
from tests.support.server import PushqServer

ROOT = Path(__file__).resolve().parents[2]
CONNECTING_AT_ONCE_MAX = 500
ANSWER_SECONDS_MAX = 20
LIMITS = Limits()
UPGRADE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def text(frame: dict[str, Any]) -> bytes:
    return bytes(Frame(Opcode.TEXT, json.dumps(frame).encode()).serialize(mask=True))


class Crowd:
    """State shared by all clients."""

    def __init__(self, port: int, key: str, queue: str) -> None:
        self.port, self.queue = port, queue
        self.hello = UPGRADE
        self.connect = text({"type": "connect", "token": key})
        self.subscribe = text({"type": "subscribe", "queue": queue, "credit": 4, "id": 1})
        self.seen: set[int] = set()
        self.subscribed: set[Consumer] = set()
        self.refused = 0
        self.places = asyncio.Semaphore(CONNECTING_AT_ONCE_MAX)
        """A real crowd comes from many machines; this one must not fill a listener's backlog on its own."""

    def state(self) -> dict[str, int]:
        return {"subscribed": len(self.subscribed), "refused": self.refused, "seen": len(self.seen)}


class Consumer(asyncio.Protocol):
    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.tries = 0
        self.asked_s = 0.0
        self.data = b""
        self.is_open = False
        self.transport: asyncio.Transport | None = None
        self.over = asyncio.Event()

    async def live(self) -> None:
        """Connects, and reconnects whenever the connection is lost."""
        loop = asyncio.get_running_loop()
        while True:
            self.data, self.is_open = b"", False
            self.over.clear()
            try:
                async with self.crowd.places:
                    await loop.create_connection(lambda: self, "127.0.0.1", self.crowd.port)
            except OSError:
                self.over.set()
            await self.over.wait()
            wait_s = delay_s(self.tries, self.asked_s, random.random(), LIMITS)
            self.tries, self.asked_s = self.tries + 1, 0.0
            await asyncio.sleep(wait_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.crowd.hello)

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.subscribed.discard(self)
        self.over.set()

    def data_received(self, data: bytes) -> None:
        self.data += data
        assert self.transport is not None
        if not self.is_open:
            head, end, rest = self.data.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self._refused(head.lower())
                return
            self.is_open, self.data = True, rest
            self.transport.write(self.crowd.connect + self.crowd.subscribe)
        for payload in self._frames():
            said = json.loads(payload)
            for frame in said if isinstance(said, list) else [said]:
                self._heard(frame)

    def _refused(self, head: bytes) -> None:
        self.crowd.refused += 1
        after = [line for line in head.split(b"\r\n") if line.startswith(b"retry-after:")]
        self.asked_s = float(after[0].partition(b":")[2]) if after else 0.0
        assert self.transport is not None
        self.transport.abort()

    def _frames(self) -> list[bytes]:
        found, at = [], 0
        data = self.data
        while len(data) - at >= 2:
            size, head = data[at + 1] & 127, 2
            if size > 125:
                wide = 2 if size == 126 else 8
                if len(data) - at < 2 + wide:
                    break
                size, head = int.from_bytes(data[at + 2 : at + 2 + wide], "big"), 2 + wide
            if len(data) - at < head + size:
                break
            if data[at] & 15 == 1:
                found.append(data[at + head : at + head + size])
            at += head + size
        self.data = data[at:]
        return found

    def _heard(self, frame: dict[str, Any]) -> None:
        assert self.transport is not None
        match frame["type"]:
            case "ok":
                self.crowd.subscribed.add(self)
                self.tries = 0
            case "deliver":
                receipts = [message["receipt"] for message in frame["messages"]]
                self.crowd.seen.update(message["body"] for message in frame["messages"])
                self.transport.write(text({"type": "ack", "queue": self.crowd.queue, "receipts": receipts}))
            case "ping":
                self.transport.write(text({"type": "pong"}))
            case "bye":
                self.asked_s = frame["retry_ms"] / 1000


async def main(port: int, key: str, queue: str, clients: int) -> None:
    crowd = Crowd(port, key, queue)
    consumers = [Consumer(crowd) for _ in range(clients)]
    tasks = [asyncio.create_task(consumer.live()) for consumer in consumers]
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while command := (await commands.readline()).decode().strip():
        if command == "cut":
            for consumer in list(crowd.subscribed):
                if consumer.transport is not None:
                    consumer.transport.abort()
        print(json.dumps(sorted(crowd.seen) if command == "seen" else crowd.state()), flush=True)
    for task in tasks:
        task.cancel()


class CrowdProcess:
    """The crowd's process, as seen by a test."""

    def __init__(self, server: PushqServer, queue: str, clients: int) -> None:
        self.clients = clients
        command = [sys.executable, "-m", "tests.support.crowd", str(server.port), server.key, queue, str(clients)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, command: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def wait_for(self, fraction: float, seconds_max: float) -> float:
        """Waits until this fraction is subscribed, and returns the seconds that took. Fails after `seconds_max`."""
        began = time.monotonic()
        while (state := self.ask("state"))["subscribed"] < fraction * self.clients:
            assert time.monotonic() - began < seconds_max, f"after {seconds_max:g} s only {state} of {self.clients}"
            time.sleep(0.1)
        return time.monotonic() - began


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
