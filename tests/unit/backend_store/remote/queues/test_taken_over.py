"""Leases that a gateway takes over, as its own queue holds them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backend_store.core.leases.session_snapshot import Detached
from backend_store.wire.store_frames import Ended, Results, of_bits
from tests.support.far_queues import FarQueues
from tests.support.queues import draft
from tests.support.stores import made, opened, published

pytestmark = pytest.mark.anyio


async def test_a_lease_that_ends_right_after_it_was_taken_over_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both frames come together. It would take credit for ever: nobody says a second time that it ended."""
    backend = await opened()
    there = await made(backend, "q")
    await published(there, draft("0"))
    lease = there.take(1, Detached(), 60_000)
    assert lease is not None
    far = FarQueues(backend, monkeypatch)
    far.define("q")
    queue: Any = far.gateway.here("default", "q")
    taking = asyncio.create_task(queue.take_over({lease.token: 1}, Detached()))
    await asyncio.sleep(0)
    line, bits = queue.home.line, of_bits(1)
    line._heard(Results([], [(line.waits_with, {lease.token: bits}, None)]))
    line._heard(Ended([(lease.token, bits)], []))
    assert [one.bits for one in await taking] == [0]
    assert not queue.stock.is_held
    await far.close()
