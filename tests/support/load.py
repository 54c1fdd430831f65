"""Clients during one life of a server that will be killed: they record what they send and see, and end when it does.

They speak the protocols directly, without the SDK, whose reconnects would hide the effects of a crash.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import CoroutineType
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from tests.support.history import QueueHistory, StreamHistory
from tests.support.patience import eventually
from tests.support.server import PushqServer

WINDOW_FRAMES = 8
CREDIT = 64
AHEAD_MESSAGES_MAX = 2_000
"""Producers wait for consumers, or else most of a round would be spent checking the backlog."""
STREAM_PAUSE_S = 0.005
"""A stream keeps everything, and each round checks all of it."""
NOTICE_S_MAX = 5
CUT = (WebSocketException, OSError, httpx2.HTTPError, EOFError, asyncio.TimeoutError)
"""Errors by which a client notices that the server was killed."""


@asynccontextmanager
async def socket(server: PushqServer) -> AsyncIterator[ClientConnection]:
    """A connected session that speaks JSON."""
    async with connect(
        server.ws_url,
        additional_headers=server.headers,
        subprotocols=[Subprotocol("pushq.v1.json")],
        compression=None,
        ping_interval=None,
        close_timeout=0.2,
        proxy=None,
    ) as ws:
        await ws.send('{"type":"connect"}')
        assert json.loads(await ws.recv())["type"] == "connected"
        yield ws


async def frames(ws: ClientConnection) -> AsyncIterator[dict[str, Any]]:
    """Everything the server sends, one object at a time."""
    async for data in ws:
        found = json.loads(data)
        for frame in found if isinstance(found, list) else [found]:
            yield frame


class Load:
    """Producers and consumers of one work queue and one stream."""

    def __init__(
        self,
        server: PushqServer,
        rng: random.Random,
        *,
        queue: str,
        stream: str,
        work: QueueHistory,
        log: StreamHistory,
    ):
        self.server = server
        self.rng = rng
        self.queue = queue
        self.stream = stream
        self.work = work
        self.log = log
        self._number = 0

    async def run(
        self,
        kill_after_s: float,
        *clients: CoroutineType[Any, Any, None],
        not_before: Callable[[], object] = lambda: True,
    ) -> None:
        """Runs the clients until the server is killed. Raises any other failure of a client."""
        tasks = [asyncio.create_task(client, name=client.cr_code.co_name) for client in clients]
        await asyncio.sleep(kill_after_s)
        await eventually(not_before, "the load has come so far that the server may be killed")
        self.server.kill()
        ended, running = await asyncio.wait(tasks, timeout=NOTICE_S_MAX)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in ended:
            if (error := task.exception()) is not None and not isinstance(error, CUT):
                raise error
        assert not running, f"{[t.get_name() for t in running]} did not notice that the server was gone"

    # ------------------------------------------------------------------------------------------------ producers

    async def produce(self, name: str) -> None:
        """Publishes to the queue, a few frames ahead of the responses."""
        await self._publish(name, self.queue, self.work.sent, self._work_confirmed, self.work.refused, self._backlog)

    async def produce_to_stream(self, name: str) -> None:
        await self._publish(name, self.stream, self.log.sent, self._log_confirmed, set(), self._lag, STREAM_PAUSE_S)

    def _backlog(self) -> int:
        return len(self.work.confirmed) - len(self.work.acked)

    def _lag(self) -> int:
        return len(self.log.confirmed) - max(map(len, self.log.readers.values()), default=0)

    def _work_confirmed(self, bodies: list[str], first: int) -> None:
        self.work.confirmed.update(bodies)

    def _log_confirmed(self, bodies: list[str], first: int) -> None:
        self.log.confirmed.update(enumerate(bodies, first))

    async def _publish(
        self,
        name: str,
        queue: str,
        sent: set[str],
        confirmed: Callable[[list[str], int], None],
        refused: set[str],
        ahead: Callable[[], int],
        pause_s: float = 0,
    ) -> None:
        window = asyncio.Semaphore(WINDOW_FRAMES)
        asked: dict[int, list[str]] = {}
        async with socket(self.server) as ws:

            async def answers() -> None:
                try:
                    async for frame in frames(ws):
                        bodies = asked.pop(frame["id"])
                        if frame["type"] == "ok":
                            confirmed(bodies, frame["messages"][0]["seq"])
                        else:
                            refused.update(bodies)
                        window.release()
                finally:
                    window.release()  # or else the producer would wait forever for a response

            reading = asyncio.create_task(answers())
            try:
                while not reading.done():
                    await window.acquire()
                    while ahead() > AHEAD_MESSAGES_MAX and not reading.done():  # noqa: ASYNC110 - others change it
                        await asyncio.sleep(0.002)
                    self._number += 1
                    bodies = [f"{name}.{self._number}.{n}" for n in range(self.rng.choice([1, 1, 3, 70]))]
                    asked[self._number] = bodies
                    sent.update(bodies)
                    messages = [{"body": body} for body in bodies]
                    frame = {"type": "publish", "queue": queue, "id": self._number, "messages": messages}
                    await ws.send(json.dumps(frame))
                    await asyncio.sleep(pause_s)
            finally:
                reading.cancel()
                with suppress(asyncio.CancelledError, *CUT):
                    await reading

    # ------------------------------------------------------------------------------------------------ consumers

    async def consume_by_socket(self) -> None:
        """Acks most messages, gives some back, and keeps the rest until the end."""
        asked: dict[int, list[str]] = {}
        async with socket(self.server) as ws:
            await ws.send(json.dumps({"type": "subscribe", "queue": self.queue, "credit": CREDIT, "id": 0}))
            number = 0
            async for frame in frames(ws):
                if frame["type"] == "deliver":
                    acks, nacks = self._received("socket", frame["messages"])
                    number += 1
                    asked[number] = [body for body, _ in acks]
                    receipts = [receipt for _, receipt in acks]
                    await ws.send(json.dumps({"type": "ack", "queue": self.queue, "id": number, "receipts": receipts}))
                    if nacks:
                        await ws.send(json.dumps({"type": "nack", "queue": self.queue, "receipts": nacks}))
                elif frame.get("id"):
                    self._acked(asked.pop(frame["id"]), frame["results"])

    def _received(self, consumer: str, messages: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], list[str]]:
        """(body, receipt) of messages to ack, and receipts of messages to give back."""
        acks: list[tuple[str, str]] = []
        nacks: list[str] = []
        for message in messages:
            self.work.deliver(message["body"], message["attempt"], consumer)
            choice = self.rng.random()
            if choice < 0.85:
                acks.append((message["body"], message["receipt"]))
            elif choice < 0.93:
                nacks.append(message["receipt"])
                self.work.give_back(message["body"])
        self.work.settling.update(body for body, _ in acks)
        return acks, nacks

    def _acked(self, bodies: list[str], results: list[dict[str, Any]]) -> None:
        assert all(row["ok"] for row in results), f"an ack by the lease holder was refused: {results}"
        self.work.acked.update(bodies)

    async def consume_by_events(self) -> None:
        """Consumes by SSE; acks are POST requests."""
        async with self._http() as http:
            url = f"/v1/queues/{self.queue}/events?credit={CREDIT}"
            async with http.stream("GET", url) as response:
                name = ""
                async for line in response.aiter_lines():
                    if line.startswith("event: "):
                        name = line[7:]
                    elif line.startswith("data: ") and name == "message":
                        await self._settle(http, "events", [json.loads(line[6:])])

    async def consume_by_polling(self) -> None:
        async with self._http() as http:
            while True:
                answer = await http.post(f"/v1/queues/{self.queue}/receive", json={"max": 20, "wait_ms": 1000})
                await self._settle(http, "poll", answer.raise_for_status().json()["messages"])

    async def _settle(self, http: httpx2.AsyncClient, consumer: str, messages: list[dict[str, Any]]) -> None:
        acks, nacks = self._received(consumer, messages)
        if acks:
            answer = await http.post(f"/v1/queues/{self.queue}/ack", json={"receipts": [r for _, r in acks]})
            self._acked([body for body, _ in acks], answer.raise_for_status().json()["results"])
        if nacks:
            (await http.post(f"/v1/queues/{self.queue}/nack", json={"receipts": nacks})).raise_for_status()

    async def read_stream(self, reader: str, cursor: str | None, keep: Callable[[str], None]) -> None:
        """Reads the stream from a cursor, or from its beginning, and keeps the last cursor it received."""
        async with socket(self.server) as ws:
            place = {"cursor": cursor} if cursor is not None else "earliest"
            await ws.send(json.dumps({"type": "subscribe", "queue": self.stream, "from": place, "id": 1}))
            async for frame in frames(ws):
                if frame["type"] == "deliver":
                    for message in frame["messages"]:
                        self.log.read(reader, message["seq"], message["body"])
                    keep(frame["cursor"])
                else:
                    assert frame["type"] == "ok" and frame["resume"] == "complete", frame

    # ----------------------------------------------------------------------------------------------- what is there

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.server.url, headers=self.server.headers, timeout=20, trust_env=False)

    async def present(self) -> list[str]:
        """The bodies of all messages in the queue, in whatever state."""
        bodies: list[str] = []
        async with self._http() as http:
            for state in ("ready", "in_flight", "delayed"):
                cursor: str | None = ""
                while cursor is not None:
                    page = {"state": state, "limit": 1000} | ({"cursor": cursor} if cursor else {})
                    answer = await http.get(f"/v1/queues/{self.queue}/messages", params=page)
                    found = answer.raise_for_status().json()
                    bodies += [item["body"] for item in found["items"]]
                    cursor = found["next"]
        return bodies
