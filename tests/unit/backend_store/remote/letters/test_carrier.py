"""A carrier meets a bug with some letters: it neither tries them again at once nor stops carrying the others."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from backend_store.core.leases.leases import Lease
from backend_store.remote.letters.carrier import LetterCarrier
from backend_store.remote.queues.leases import far_lease
from tests.support.queues import draft, publish, queue, took

pytestmark = pytest.mark.anyio


class Outbox:
    """Has some leases, and notes what comes back."""

    owner, name, tenant, deleted = "orders", "orders/outbox", "default", False

    def __init__(self, tokens: list[str]):
        self.waiting = deque(tokens)
        self.leased: list[Lease] = []
        self.returned: list[Lease] = []

    def on_ready(self, wake: Any, wanted: Any) -> None:
        self.wake = wake

    def wanted_changed(self) -> None: ...

    def take(self, limit: int, holder: Any, visibility_ms: int) -> Lease | None:
        if not self.waiting:
            return None
        self.leased.append(far_lease(self.waiting.popleft(), 1, holder))
        return self.leased[-1]

    def unsent(self, lease: Lease) -> None:
        self.returned.append(lease)


class Store:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def background(self, work: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]


async def test_letters_that_meet_a_bug_stay_leased_and_others_go_on() -> None:
    world = queue()
    publish(world, draft("a"), draft("b"))
    tokens = [lease.token for lease in (took(world, 1), took(world, 1)) if lease is not None]
    store, outbox = Store(), Outbox(tokens[:1])
    LetterCarrier(store, outbox)  # type: ignore[arg-type]
    outbox.wake()
    await asyncio.gather(*store.tasks)
    assert len(outbox.leased) == 1 and outbox.returned == [], "their chunk is missing, which is a bug: they wait"
    outbox.waiting.append(tokens[1])
    outbox.wake()
    assert len(outbox.leased) == 2, "further letters are taken"
    await asyncio.gather(*store.tasks)
