"""Offers publishes to a server at a given rate, whatever it answers; runs as a separate process.

`python -m tests.support.offered PORT KEY QUEUE SOCKETS FRAMES_PER_SECOND SECONDS`. A rate of 0 is a closed loop: each
socket keeps a few frames in flight, which measures the server's capacity. At any rate the frames in flight are bounded
per socket, as in any client; frames beyond that are dropped, not postponed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvloop

from tests.support.crowd import UPGRADE, text
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

ROOT = Path(__file__).resolve().parents[2]
PER_FRAME = 100
BODY = '"' + "x" * 30 + '"'
CLOSED_WINDOW_FRAMES = 4
OPEN_WINDOW_FRAMES = 16
TICK_SECONDS = 0.004
NO_MASK = bytes(4)


class Outcome(NamedTuple):
    """The outcome of an offer, once all of it was answered. `p50_ms` and `p99_ms` are those of accepted frames."""

    taken: int
    """Messages, including those answered after the offer ended; the rates cover only the offer."""
    refused: int
    taken_per_s: float
    offered_per_s: float
    refused_per_s: float
    p50_ms: float
    p99_ms: float


class Producer(asyncio.Protocol):
    def __init__(self, key: str, queue: str, window: int) -> None:
        self.hello = text({"type": "connect", "token": key})
        self.window = window
        self.ready = asyncio.get_running_loop().create_future()
        self.began: dict[int, float] = {}
        self.seconds: list[float] = []
        self.refused = 0
        self.numbers = itertools.count(1)
        self.data = b""
        self.on_answer: Any = None
        messages = ",".join(f'{{"body":{BODY}}}' for _ in range(PER_FRAME))
        self.head = f'{{"type":"publish","queue":"{queue}","id":'.encode()
        self.tail = f',"messages":[{messages}]}}'.encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(UPGRADE)

    def data_received(self, data: bytes) -> None:
        self.data += data
        if not self.ready.done():
            if b"\r\n\r\n" in self.data:
                head, _, self.data = self.data.partition(b"\r\n\r\n")
                assert b" 101 " in head, head
                self.transport.write(self.hello)
            if b'"connected"' in self.data:
                self.data = b""
                self.ready.set_result(None)
            return
        now = time.monotonic()
        while len(self.data) >= 4:
            size, start = self.data[1] & 127, 2
            if size > 125:
                wide = 2 if size == 126 else 8
                size, start = int.from_bytes(self.data[2 : 2 + wide], "big"), 2 + wide
            if len(self.data) < start + size:
                return
            said = json.loads(self.data[start : start + size])
            self.data = self.data[start + size :]
            for frame in said if isinstance(said, list) else [said]:
                self._answered(frame, now)

    def _answered(self, frame: dict[str, Any], now: float) -> None:
        if frame["type"] == "ok":
            self.seconds.append(now - self.began.pop(frame["id"]))
        elif frame["type"] == "error":
            assert frame["problem"]["code"] == "overloaded", frame
            del self.began[frame["id"]]
            self.refused += 1
        if self.on_answer is not None:
            self.on_answer()

    def offer(self) -> None:
        if len(self.began) >= self.window:
            return
        number = next(self.numbers)
        payload = b"%b%d%b" % (self.head, number, self.tail)
        self.began[number] = time.monotonic()
        self.transport.write(b"\x81\xfe" + len(payload).to_bytes(2, "big") + NO_MASK + payload)


async def main(port: int, key: str, queue: str, sockets: int, rate: float, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    window = OPEN_WINDOW_FRAMES if rate else CLOSED_WINDOW_FRAMES
    producers = [Producer(key, queue, window) for _ in range(sockets)]
    for producer in producers:
        await loop.create_connection(lambda each=producer: each, "127.0.0.1", port)  # type: ignore[misc]
        await producer.ready
    began, offered = time.monotonic(), 0
    if rate:
        while (passed := time.monotonic() - began) < seconds:
            for producer in itertools.islice(itertools.cycle(producers), max(0, int(passed * rate) - offered)):
                producer.offer()
            offered = max(offered, int(passed * rate))
            await asyncio.sleep(TICK_SECONDS)
    else:
        for producer in producers:
            producer.on_answer = producer.offer
            for _ in range(CLOSED_WINDOW_FRAMES):
                producer.offer()
        await asyncio.sleep(seconds)
    took = time.monotonic() - began
    latencies = sorted(latency for producer in producers for latency in producer.seconds)
    refused = sum(producer.refused for producer in producers)
    await all_answered(producers)
    outcome = Outcome(
        taken=sum(len(producer.seconds) for producer in producers) * PER_FRAME,
        refused=sum(producer.refused for producer in producers) * PER_FRAME,
        taken_per_s=len(latencies) * PER_FRAME / took,
        offered_per_s=(offered or len(latencies)) * PER_FRAME / took,
        refused_per_s=refused * PER_FRAME / took,
        p50_ms=1000 * latencies[len(latencies) // 2],
        p99_ms=1000 * latencies[len(latencies) * 99 // 100],
    )
    print(json.dumps(outcome._asdict()))


async def all_answered(producers: Sequence[Producer]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while under_way := sum(len(producer.began) for producer in producers):
        assert time.monotonic() < deadline, f"{under_way} frames were never answered"
        for producer in producers:
            producer.on_answer = None
        await asyncio.sleep(TICK_SECONDS)


def offer(server: PushqServer, queue: str, *, sockets: int, messages_per_s: float, seconds: float) -> Outcome:
    """Runs the process to its end."""
    rate = str(messages_per_s / PER_FRAME)
    command = [sys.executable, "-m", "tests.support.offered", str(server.port), server.key, queue, str(sockets)]
    done = subprocess.run(
        [*command, rate, str(seconds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + 2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Outcome(**json.loads(done.stdout))


if __name__ == "__main__":
    port, key, queue, sockets, rate, seconds = sys.argv[1:]
    uvloop.run(main(int(port), key, queue, int(sockets), float(rate), float(seconds)))
