"""Producers and consumers that keep working through every fault, and record what they see: the judge of the fault
tests.

Each message has an id and a key. A producer repeats a call, at either gateway, until it is confirmed, and sends nothing
newer of that key before; queues are in strict order and drop duplicates. So nothing may be lost or stored twice, every
key must stay in order, and nothing may be delivered after its ack was confirmed. In mode `async`, a lost leader takes
with it what it alone confirmed: messages of that time may be missing until they are published again from its
quarantine, and acks may be lost; nothing else may. The load runs in its own thread, on the gateways' host.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import httpx2

from tests.support.consumers import Socket, call, http_client
from tests.support.hosts import Host
from tests.support.keyed_history import Name
from tests.support.losses import Losses
from tests.support.netted_cluster import Gateway, enter
from tests.support.patience import until
from tests.support.queue_load import QueueLoad

PRODUCERS: Final = "ab"
"""Per queue."""
KEYS: Final = 4
"""Per producer."""
CALL_MESSAGES: Final = 3
PAUSE_S: Final = 0.02
"""Between two calls of a producer: a fault test is not a benchmark."""
AGAIN_S: Final = 0.05
"""Before a refused call is repeated."""
ANSWER_S_MAX: Final = 120.0
SERVICE_S_MAX: Final = 60.0
"""Far above the promised 10 s: test machines are busy, and etcd may be slow."""
VISIBILITY_MS: Final = 10_000
"""In strict order a lease outlives its leader: messages that were about to be handed out wait until it ends."""
CREDIT: Final = 20
AHEAD_MESSAGES_MAX: Final = 200
"""Beyond this, producers wait for consumers."""
AHEAD_SECONDS_MAX: Final = 5.0
"""They stop waiting after this time, as the messages they wait for may be lost."""
EMPTY_S_MAX: Final = 120.0
END_S_MAX: Final = 30.0
PLAIN: Final = {"visibility_timeout_ms": VISIBILITY_MS, "dead_letter_queue": None}
"""For messages without key and id, which any lane accepts."""
QUEUE: Final = {
    "ordering": "strict",
    "dedupe": "id",
    "dedupe_window_ms": 24 * 3600 * 1000,
    "visibility_timeout_ms": VISIBILITY_MS,
    "dead_letter_queue": None,
}
LATER: Final = ("unavailable", "overloaded", "not-durable", "outcome-unknown", "storage-full")
"""Errors that a call may receive while something is broken."""


class FaultLoad:
    """See the module docstring. Its methods are called from the test's thread."""

    def __init__(
        self,
        host: Host,
        gateways: list[Gateway],
        queues: int,
        *,
        may_lose: bool = False,
        plain: int = 0,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`queues`: number of queues in strict order, whose messages have ids and keys. `plain`: number of further
        queues, whose messages have neither. `pause_s`: pause between two calls of a producer."""
        self.losses = Losses() if may_lose else None
        self._pause_s = pause_s
        self._host = host
        self._gateways = gateways
        self.queues = [
            QueueLoad(f"load{number}", losses=self.losses, is_plain=number >= queues)
            for number in range(queues + plain)
        ]
        self._stopping = threading.Event()
        """While set, producers send nothing new."""
        self._ending = threading.Event()
        self._holding = threading.Event()
        """While set, consumers ack nothing, and therefore receive little."""
        self._number = 0
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    # ------------------------------------------------------------------------------------------------------ the test

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Runs the load; at the end, everything confirmed has been delivered and acked, or lost."""
        self._thread.start()
        try:
            yield
            self._stopping.set()
            until(self._is_over, lambda: f"the queues are empty: {self.details()}", within_s=EMPTY_S_MAX)
        finally:
            self._stopping.set()
            self._ending.set()
            self._thread.join(END_S_MAX)
        self._check()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Consumers ack nothing within the block, so queues fill up."""
        self._holding.set()
        try:
            yield
        finally:
            self._holding.clear()

    def recovers(self) -> None:
        """From now on lost messages may reappear, and must be there at the end."""
        for queue in self.queues:
            queue.is_recovering = True

    def serves(self, *, since: float | None = None, within_s: float = SERVICE_S_MAX) -> float:
        """Seconds until a message of each queue is acked that was sent after `since`, or now."""
        began = time.monotonic()
        since = began if since is None else since
        until(
            lambda: self._is_over() or all(queue.latest_acked_sent_at > since for queue in self.queues),
            self.details,
            within_s=within_s,
        )
        self._check()
        return time.monotonic() - began

    def longest_wait(self, since: float) -> float:
        return max(queue.longest_wait(since) for queue in self.queues)

    def waits(self) -> list[float]:
        """For each confirmed call, the seconds since it was first sent."""
        return [seconds for queue in self.queues for _, seconds in queue.waits]

    @property
    def refused(self) -> int:
        """Number of responses that asked for a publish to be retried."""
        return sum(queue.codes.total() for queue in self.queues)

    def slowest(self, since: float) -> tuple[float, str]:
        """Of the messages acked since then: the longest time from first publish to ack, and that message's trail."""
        seconds, name, queue = max(((*queue.slowest(since), queue) for queue in self.queues), key=lambda one: one[0])
        return seconds, "" if name is None else f"{name}\n  " + "\n  ".join(queue.trail[name])

    @property
    def again(self) -> int:
        return sum(queue.again for queue in self.queues)

    @property
    def confirmed(self) -> int:
        return sum(len(queue.history.places) for queue in self.queues)

    def summary(self) -> str:
        lost, acks_lost = sum(len(one.lost()) for one in self.queues), sum(one.acks_lost for one in self.queues)
        return (
            f"{self.confirmed} confirmed, {lost} lost, {acks_lost} acks lost with leaders, {self.again} delivered again"
        )

    def broken(self) -> list[str]:
        """Promises that were broken; call it when the load is over."""
        return [f"{queue.name}: {one}" for queue in self.queues for one in queue.broken()]

    def broken_so_far(self) -> list[str]:
        return [f"{queue.name}: {one}" for queue in self.queues for one in queue.seen + queue.history.seen]

    def details(self) -> str:
        return "\n".join(
            f"{queue.name}: {queue.history.sent.total()} sent, {len(queue.history.places)} confirmed,"
            f" {len(queue.history.acked)} acked, {queue.again} again, waiting {list(queue.asked.copy().values())[:3]},"
            f" refused {dict(queue.details)}"
            for queue in self.queues
        )

    def _is_over(self) -> bool:
        return self._failed is not None or not self._thread.is_alive()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    # ------------------------------------------------------------------------------------------------------- the load

    def _run(self) -> None:
        try:
            enter(self._host)
            asyncio.run(self._all())
        except BaseException as error:
            self._failed = error

    async def _all(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(http_client(one)) for one in self._gateways]
            for client in clients:
                client.timeout = httpx2.Timeout(ANSWER_S_MAX)
            for queue in self.queues:
                await call(clients[0], "PUT", queue.name, PLAIN if queue.is_plain else QUEUE)
            sockets = [await stack.enter_async_context(Socket.open(one)) for one in self._gateways]
            async with asyncio.TaskGroup() as tasks:
                consumers = [tasks.create_task(self._consume(socket)) for socket in sockets]
                await self._produce_all(clients)
                await self._until_empty(clients[0])
                for consumer in consumers:
                    consumer.cancel()

    async def _produce_all(self, clients: list[httpx2.AsyncClient]) -> None:
        async with asyncio.TaskGroup() as producers:
            for number, queue in enumerate(self.queues):
                for letter in PRODUCERS:
                    producers.create_task(self._produce(f"{number}{letter}", queue, clients))

    async def _until_empty(self, client: httpx2.AsyncClient) -> None:
        for queue in self.queues:
            while not self._ending.is_set():
                stats = (await call(client, "GET", queue.name))["stats"]
                if stats["ready"] + stats["in_flight"] + stats["delayed"] == 0:
                    break
                await asyncio.sleep(0.2)
            is_exact = queue.losses is None and not queue.is_plain
            if is_exact and stats["published_total"] != len(queue.history.places):
                queue.seen.append(f"{stats['published_total']} are stored of {len(queue.history.places)} confirmed")

    # --------------------------------------------------------------------------------------------------------- clients

    async def _produce(self, name: str, queue: QueueLoad, clients: list[httpx2.AsyncClient]) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            names = [queue.history.next(f"{name}-{(number + one) % KEYS}") for one in range(CALL_MESSAGES)]
            await self._publish((name, number), names, queue, clients)
            await asyncio.sleep(self._pause_s)
            patience_s = math.inf if queue.losses is None else AHEAD_SECONDS_MAX
            until_s = time.monotonic() + patience_s
            while (  # noqa: ASYNC110 - consumers change it
                queue.behind > AHEAD_MESSAGES_MAX and not self._stopping.is_set() and time.monotonic() < until_s
            ):
                await asyncio.sleep(self._pause_s)

    async def _publish(
        self, number: tuple[str, int], names: list[Name], queue: QueueLoad, clients: list[httpx2.AsyncClient]
    ) -> None:
        began = queue.asked[number] = time.monotonic()
        queue.sent_at.update(dict.fromkeys(names, began))
        for name in names:
            queue.note(name, "published")
        messages = [
            {"body": list(name)} | ({} if queue.is_plain else {"key": name.key, "id": str(name)}) for name in names
        ]
        for client in itertools.cycle(clients if number[1] % 2 else clients[::-1]):
            answer = await client.post(f"/v1/queues/{queue.name}/messages", json={"messages": messages})
            if answer.status_code == 201:
                errors = {
                    name: row["error"]
                    for name, row in zip(names, answer.json()["messages"], strict=True)
                    if "error" in row
                }
            else:
                errors = dict.fromkeys(names, answer.json())
            if not errors:
                break
            for name, error in errors.items():
                queue.codes[error["code"]] += 1
                queue.details[f"{error['code']}: {error['detail']}"] += 1
                queue.note(name, json.dumps(error))
                assert error["code"] in LATER, error
            if queue.is_plain:
                queue.refused.update(name for name, error in errors.items() if error["code"] != "outcome-unknown")
            if queue.is_plain or self._ending.is_set():
                break
            await asyncio.sleep(AGAIN_S)
        del queue.asked[number]
        if answer.status_code == 201:
            for name, row in zip(names, answer.json()["messages"], strict=True):
                if name not in errors:
                    assert queue.is_plain or row["id"] == str(name), row
                    queue.confirmed(name, (row["partition"], row["seq"]))
        if not errors:
            queue.waits.append((now := time.monotonic(), now - began))

    async def _consume(self, socket: Socket) -> None:
        for queue in self.queues:
            answer = await socket.ask(within_s=ANSWER_S_MAX, type="subscribe", queue=queue.name, credit=CREDIT)
            assert answer["type"] == "ok", answer
        async with asyncio.TaskGroup() as settling:
            while True:
                frames = [await socket.inbox.get()]
                while not socket.inbox.empty():
                    frames.append(socket.inbox.get_nowait())
                assert not [frame for frame in frames if frame["type"] == "closed"], frames
                receipts: defaultdict[int, dict[str, Name]] = defaultdict(dict)
                for frame in frames:
                    if frame["type"] == "message":
                        message = frame["message"]
                        number = int(message["body"][0][0])
                        name = self.queues[number].delivered(message, frame["came_at"])
                        receipts[number][message["receipt"]] = name
                for number, given in receipts.items():
                    settling.create_task(self._settle(socket, self.queues[number], given))

    async def _settle(self, socket: Socket, queue: QueueLoad, receipts: dict[str, Name]) -> None:
        while self._holding.is_set():  # noqa: ASYNC110 - the test's thread clears it
            await asyncio.sleep(AGAIN_S)
        queue.history.settle(receipts.values())
        while receipts and not self._ending.is_set():
            answer = await socket.ask(within_s=ANSWER_S_MAX, type="ack", queue=queue.name, receipts=list(receipts))
            if answer["type"] == "ok":
                for row, (_, name) in zip(answer["results"], receipts.items(), strict=True):
                    queue.note(name, f"ack: {row}")
                for row, (receipt, name) in zip(answer["results"], list(receipts.items()), strict=True):
                    if row["ok"]:
                        queue.settled(name)
                    if row["ok"] or row["error"] == "stale-receipt":
                        del receipts[receipt]  # its current holder acks it
            else:
                for name in receipts.values():
                    queue.note(name, f"ack: {answer}")
                assert answer["type"] == "error" and answer["problem"]["code"] in LATER, answer
            if receipts:
                await asyncio.sleep(AGAIN_S)
