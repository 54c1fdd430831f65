"""Producers and consumers of a strict queue that never give up: unconfirmed messages are sent again, with the same id.

They speak HTTP directly, each through its own gateway. What they see is recorded in a `KeyedHistory`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from tests.support.keyed_history import KeyedHistory, Name
from tests.support.patience import PATIENCE_S, eventually

CONFIG: dict[str, Any] = {
    "ordering": "strict",
    "delivery": "exactly_once",
    "dedupe": "id",
    "visibility_timeout_ms": 30_000,
    "dead_letter_queue": None,
}
"""Config of the queue. The timeout exceeds the time from delivery to ack on a busy machine."""
AGAIN = frozenset({"unavailable", "overloaded", "not-durable", "outcome-unknown"})
"""Errors after which a request is retried."""
PAUSE_S = 0.1
"""Between two publishes of a producer: the load is light, so that a cluster under it counts as idle."""
AHEAD_MAX = 100
BATCH = 10
KEYS = 2
REQUEST_S_MAX = 90.0


class StubbornLoad:
    """A producer and a consumer at each gateway. Use `running`."""

    def __init__(
        self, urls: Sequence[str], headers: dict[str, str], queue: str, *, handling_s: float = 0.0, keys: int = KEYS
    ) -> None:
        """`handling_s`: time between a delivery and its ack, so that the queue is never empty. `keys`: keys per
        producer; each request has one message of each."""
        self.queue = queue
        self._keys = keys
        self._handling_s = handling_s
        self.history = KeyedHistory()
        self.refused = 0
        """Requests answered with one of `AGAIN`."""
        self.cut_off = 0
        """Requests without a response."""
        self._urls = urls
        self._headers = headers
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end, everything sent is confirmed, and nothing is left. Raises failures of the clients."""
        async with asyncio.TaskGroup() as group:
            producers = [group.create_task(self._produce(f"p{n}", url)) for n, url in enumerate(self._urls)]
            consumers = [group.create_task(self._consume(url)) for url in self._urls]
            self._tasks = [*producers, *consumers]
            yield
            self._stopped = True
            await asyncio.gather(*producers)
            # A repeated ack is refused if the first one succeeded, so the queue itself is asked.
            await self._until(self._is_empty, self._left)
            for one in consumers:
                one.cancel()

    async def more(self, count: int) -> float:
        """Waits until `count` more messages are confirmed and acked; returns the seconds that took."""
        confirmed, acked = len(self.history.places) + count, len(self.history.settling) + count
        return await self._until(
            lambda: len(self.history.places) >= confirmed and len(self.history.settling) >= acked, self._left
        )

    async def broken(self) -> list[str]:
        """Promises that were broken."""
        found, sent, stats = self.history.violations(()), len(self.history.places), await self._stats()
        for what in ("published_total", "acked_total"):
            if stats[what] != sent:
                found.append(f"{what} is {stats[what]}, but {sent} were sent")
        return found

    async def _is_empty(self) -> bool:
        stats = await self._stats()
        return not (stats["ready"] or stats["in_flight"] or stats["delayed"])

    async def _stats(self) -> dict[str, int]:
        async with self._client(self._urls[0]) as http:
            answer = await http.get(f"/v1/queues/{self.queue}")
            return {"ready": 1} if answer.status_code == 503 else answer.raise_for_status().json()["stats"]

    def _left(self) -> str:
        history = self.history
        left = sorted(history.places.keys() - history.acked)
        return f"{self.queue}: {len(history.places)} confirmed, not yet acked: {', '.join(map(str, left[:20]))}"

    async def _until(self, is_so: Callable[[], object], what: Callable[[], str]) -> float:
        return await eventually(is_so, what, within_s=PATIENCE_S * 3, look_s=0.05, beside=self._tasks)

    async def _produce(self, name: str, url: str) -> None:
        """Each key has one message in flight at a time, so messages are sent in order."""
        async with self._client(url) as http:
            while not self._stopped:
                frame = [self.history.next(f"{name}-{key}") for key in range(self._keys)]
                messages = [{"body": list(one), "key": one.key, "id": str(one)} for one in frame]
                answer = await self._insist(http, "messages", {"messages": messages})
                while refused := self._confirmed(frame, messages, answer):
                    answer = await self._insist(http, "messages", {"messages": [messages[n] for n in refused]})
                    frame, messages = [frame[n] for n in refused], [messages[n] for n in refused]
                await asyncio.sleep(PAUSE_S)
                while len(self.history.places) - len(self.history.settling) > AHEAD_MAX:  # noqa: ASYNC110 - consumers move it
                    await asyncio.sleep(PAUSE_S)

    def _confirmed(self, frame: list[Name], messages: list[dict[str, Any]], answer: Any) -> list[int]:
        """Indexes to send again: of a queue in several clusters, one cluster may refuse its messages on its own."""
        refused = []
        for number, (one, row) in enumerate(zip(frame, answer["messages"], strict=True)):
            assert row["id"] == str(one), row
            if "error" in row:
                assert row["error"]["code"] in AGAIN, row
                self.refused += 1
                refused.append(number)
            else:
                self.history.confirm(one, (row.get("partition", 0), row["seq"]))
        return refused

    async def _consume(self, url: str) -> None:
        async with self._client(url) as http:
            while True:
                answer = await self._insist(http, "receive", {"max": BATCH, "wait_ms": 1_000})
                came = {one["receipt"]: Name(*one["body"]) for one in answer["messages"]}
                for name in came.values():
                    self.history.deliver(name)
                if not came:
                    continue
                await asyncio.sleep(self._handling_s)
                self.history.settle(came.values())
                verdicts = (await self._insist(http, "ack", {"receipts": list(came)}))["results"]
                self.history.ack([name for name, one in zip(came.values(), verdicts, strict=True) if one["ok"]])

    async def _insist(self, http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> Any:
        while True:
            try:
                answer = await http.post(f"/v1/queues/{self.queue}/{path}", json=body)
            except httpx2.TransportError:  # its gateway was killed
                self.cut_off += 1
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.is_success:
                return answer.json()
            assert answer.json()["code"] in AGAIN, answer.text
            self.refused += 1
            await asyncio.sleep(PAUSE_S)

    def _client(self, url: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=url, headers=self._headers, timeout=REQUEST_S_MAX, trust_env=False)
