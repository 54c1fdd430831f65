"""Processes of `pushq serve --gateways` are killed one after the other under load: nothing confirmed is lost, everybody
goes on at another process, and a drain under load ends cleanly."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import anyio.to_thread
import pytest

from push.client import Admin, Disconnected, LeaseLost, Limits, Pushq, SessionEvent, connect
from push.client.model import TransportName
from tests.support.several import SeveralServer, children_of, end, is_there, until_gone

pytestmark = pytest.mark.anyio

KILLS = int(os.environ.get("GATEWAY_KILLS", "2"))
KILLS_MAX = KILLS + 8
"""Until somebody was cut off."""
STORED_BEFORE_A_KILL = 30
PAUSE_S = 0.05
"""Between two publishes of a producer."""
WAIT_S = 120.0 + 20 * KILLS
CONSUMERS: tuple[TransportName, ...] = ("ws", "sse", "poll")
QUICK = Limits(backoff_base_s=0.05, backoff_cap_s=0.5, close_timeout_s=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SeveralServer]:
    server = SeveralServer(tmp_path / "data", gateways=2)
    yield server.start()
    server.kill()


class Load:
    """Producers and consumers of one queue, and what they know."""

    def __init__(self, server: SeveralServer) -> None:
        self.server = server
        self.confirmed: set[int] = set()
        self.received: set[int] = set()
        self.cut = 0
        self.is_over = asyncio.Event()

    def opened(self, transport: TransportName) -> Pushq:
        def told(event: SessionEvent) -> None:
            self.cut += isinstance(event, Disconnected)

        return connect(self.server.url, self.server.key, transport=transport, limits=QUICK, on_event=told)

    async def produce(self, first: int, step: int) -> None:
        async with self.opened("ws") as pushq:
            for number in range(first, 1_000_000, step):
                if self.is_over.is_set():
                    return
                await pushq.publish("orders", number)
                self.confirmed.add(number)
                await asyncio.sleep(PAUSE_S)

    async def consume(self, transport: TransportName) -> None:
        async with self.opened(transport) as pushq:
            async for message in pushq.subscribe("orders", credit=50):
                self.received.add(message.body)
                with suppress(LeaseLost):
                    await message.ack()

    async def goes_on(self) -> None:
        """More is confirmed."""
        await self.until("confirmed", len(self.confirmed) + STORED_BEFORE_A_KILL)

    async def until(self, what: str, count: int | None = None) -> None:
        """So many are confirmed; without a number: everything that was confirmed has arrived."""
        deadline = time.monotonic() + WAIT_S
        while not (self.confirmed <= self.received if count is None else len(self.confirmed) >= count):
            missing = len(self.confirmed - self.received)
            assert time.monotonic() < deadline, f"not {what}: {len(self.confirmed)} confirmed, {missing} missing"
            await asyncio.sleep(0.05)


async def test_kills_and_a_drain_under_load_lose_nothing(server: SeveralServer) -> None:
    """Processes are killed in turn; then all are asked to end, and one process takes over what they left."""
    load = Load(server)
    async with Admin(server.url, server.key) as admin:
        await admin.create_queue("orders", {"visibility_timeout_ms": 5000})
    async with asyncio.TaskGroup() as work:
        consumers = [work.create_task(load.consume(transport)) for transport in CONSUMERS]
        producers = [work.create_task(load.produce(n, 4)) for n in range(4)]
        for number, name in enumerate(islice(cycle(("gateway-2", "storage", "gateway-1")), KILLS_MAX)):
            if number >= KILLS and load.cut:
                break  # which of the gateways has whose connection is the kernel's choice
            await load.goes_on()
            pid = (await anyio.to_thread.run_sync(server.all_there))[name]
            end(pid)
            await anyio.to_thread.run_sync(until_gone, {name: pid})
        parent, children = server.pid, await anyio.to_thread.run_sync(server.all_there)
        await load.goes_on()
        assert load.cut > 0, "nobody noticed that anything was killed"
        stopped = await anyio.to_thread.run_sync(server.stop)
        assert stopped.exit_code == 0
        assert not children_of(parent) and not any(map(is_there, children.values()))
        server.gateways = 1
        await anyio.to_thread.run_sync(server.start)
        load.is_over.set()
        await asyncio.gather(*producers)
        await load.until("received")
        for consumer in consumers:
            consumer.cancel()
    async with Admin(server.url, server.key) as admin:
        stats = (await admin.ask("GET", "/v1/queues/orders"))["stats"]
    assert stats["published_total"] >= len(load.confirmed)
    assert stats["dead"] == 0
