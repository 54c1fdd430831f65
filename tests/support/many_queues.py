"""The console with many queues, in this process: how long its list takes, and the cost of an open live page.

`python -m tests.support.many_queues` prints the figures. Time is advanced by hand, so minutes of an open page take only
as long as the work done in them, which is measured in CPU time of this thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from unittest.mock import patch

import httpx2

from backend_store.client import Store
from backend_store.model import QueueConfig
from backend_store.node.node import Node
from backend_store.storage.memory import MemoryEngine
from gateway.app import Application, create_app
from gateway.config.settings import Settings
from web_console import console
from web_console.console import watched
from web_console.limits import ROWS_PER_PAGE

QUEUES = 6_000
OPEN_S = 600
"""How long the page stays open."""
TURNS = 100
"""Turns of the event loop in each pause of the page."""
URL = "http://test"
_CREATED_TOGETHER = 200


class Figures(NamedTuple):
    queues: int
    first_ms: float
    """The first page after a start, for which every queue is read."""
    list_ms: float
    """A sorted page of the list whose data is already known."""
    share: float
    """Share of a core used while one live page is open: reading the queues, and rendering the page."""
    looks: int
    """How often the page was rendered in that time."""


@asynccontextmanager
async def many(queues: int) -> AsyncIterator[Application]:
    node = Node(MemoryEngine(), directory=None)
    await node.start()
    store = Store(node)
    for start in range(0, queues, _CREATED_TOGETHER):
        names = [f"queue-{number:05}" for number in range(start, min(queues, start + _CREATED_TOGETHER))]
        await asyncio.gather(*(store.create_queue("default", name, QueueConfig()) for name in names))
    app = create_app(store, Settings(), clock_ms=lambda: time.time_ns() // 1_000_000)
    yield app
    await app.gateway.hub.close()
    await node.close()


async def figures(queues: int = QUEUES, open_s: int = OPEN_S) -> Figures:
    async with many(queues) as app:
        made = await app.gateway.keyring.create(name="k", tenant="default", scopes=("admin", "operator"))
        transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
        async with httpx2.AsyncClient(transport=transport, base_url=URL, headers={"Origin": URL}) as client:
            assert (await client.post("/console/login", data={"credential": made.token})).status_code == 303
            first_ms = await _page_ms(client)
            list_ms = min([await _page_ms(client) for _ in range(5)])
            share, looks = await _open(client, open_s)
    return Figures(queues, first_ms, list_ms, share, looks)


async def _page_ms(client: httpx2.AsyncClient) -> float:
    began = time.thread_time()
    page = await client.get("/console/queues", params={"sort": "-name"})
    assert page.status_code == 200 and page.text.count('<th scope="row"') == ROWS_PER_PAGE
    return (time.thread_time() - began) * 1000


async def _open(client: httpx2.AsyncClient, open_s: int) -> tuple[float, int]:
    """Keeps a live page open for this long, on a clock that stands still while work is done."""
    now_s, looks = time.monotonic(), 0
    ends_s = now_s + open_s

    async def look() -> str | None:
        nonlocal looks
        if now_s >= ends_s:
            return None
        looks += 1
        return (await client.get("/console/queues")).text

    async def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        for _ in range(TURNS):  # lets other tasks do their work
            await asyncio.sleep(0)

    began = time.thread_time()
    with patch("gateway.console_server.time.monotonic", lambda: now_s), patch.object(console, "_pause", pause):
        async for _ in watched(look):
            pass
    return (time.thread_time() - began) / open_s, looks


if __name__ == "__main__":
    found = asyncio.run(figures(int(sys.argv[1]) if len(sys.argv) > 1 else QUEUES))
    print(
        f"{found.queues} queues: first page {found.first_ms:.0f} ms, further pages {found.list_ms:.0f} ms, "
        f"one live page {found.share:.2%} of a core ({found.looks} updates in {OPEN_S} s)"
    )
