"""Which of several hosts is asked: who keeps the name, then who is near, and whoever is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from backend_store.metadata.directory.client import DirectoryClient
from backend_store.metadata.directory.core.ring import NO_RING, Ring
from backend_store.metadata.directory.limits import ARCS
from backend_store.metadata.server import serve_metadata
from backend_store.metadata.traffic import Traffic
from tests.support.metadata import SECRET, local_service
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Hosts:
    """Metadata services of this process, in zones, and how many requests each has answered."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self._traffic: list[Traffic] = []
        self._stacks: list[AsyncExitStack] = []

    async def start(self, zone: str) -> None:
        traffic, stack = Traffic(), AsyncExitStack()
        server = await serve_metadata(local_service(), SECRET, "127.0.0.1", 0, traffic=traffic, zone=zone)
        stack.push_async_callback(server.wait_closed)
        stack.callback(server.close)
        self.urls.append(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}")
        self._traffic.append(traffic)
        self._stacks.append(stack)

    async def end(self, number: int) -> None:
        await self._stacks[number].aclose()

    async def close(self) -> None:
        for stack in self._stacks:
            await stack.aclose()

    @property
    def answered(self) -> list[int]:
        return [sum(traffic.requests.values()) for traffic in self._traffic]


@asynccontextmanager
async def hosts_in(*zones: str) -> AsyncIterator[Hosts]:
    hosts = Hosts()
    try:
        for zone in zones:
            await hosts.start(zone)
        yield hosts
    finally:
        await hosts.close()


@asynccontextmanager
async def asker(hosts: Hosts, zone: str) -> AsyncIterator[DirectoryClient]:
    """Connected to all of them."""
    client = DirectoryClient(hosts.urls, SECRET, zone=zone)
    try:
        assert all(await asyncio.gather(*(host.connected(PATIENCE_S) for host in client._hosts.values())))
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize(("zone", "asked"), [("west", 1), ("east", 0), ("", 0), ("north", 0)])
async def test_a_host_in_the_askers_zone_is_asked_where_there_is_one(zone: str, asked: int) -> None:
    async with hosts_in("east", "west", "east") as hosts, asker(hosts, zone) as client:
        for _ in range(5):
            await client.get_tenant("default")
        assert hosts.answered == [5 if number == asked else 0 for number in range(3)]


async def test_the_others_are_asked_while_the_near_one_is_not_there() -> None:
    async with hosts_in("east", "west") as hosts, asker(hosts, "west") as client:
        await client.get_tenant("default")
        await hosts.end(1)
        await client.get_tenant("default")
        assert hosts.answered == [1, 1]


async def test_who_keeps_a_name_comes_before_who_is_near() -> None:
    """Of the two that keep it the near one, also where it is the second."""
    async with hosts_in("east", "west", "west") as hosts, asker(hosts, "west") as client:
        urls = dict(zip("abc", hosts.urls, strict=True))
        client.ring = Ring(1, (("a", "c"),) * ARCS, urls)
        await client.get_queue("default", "orders")
        assert hosts.answered == [0, 0, 1]
        client.ring = Ring(2, (("a",),) * ARCS, urls)
        await client.get_queue("default", "orders")
        assert hosts.answered == [1, 0, 1]
        client.ring = NO_RING
        await client.get_queue("default", "orders")
        assert hosts.answered == [1, 1, 1]
