"""A long-poll that ends without an answer costs no lease and no attempt, however it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from push.feeder import feeder_of
from push.transports.longpoll import receive_messages
from tests.support.world import VISIBILITY_MS, World, queue_of

pytestmark = pytest.mark.anyio


async def never() -> Any:
    await asyncio.Event().wait()


async def test_a_poll_that_is_cancelled_leaves_its_messages_as_they_were() -> None:
    """A shutdown cancels what does not end in time; the next start must not see an attempt that nobody got."""
    world = World()
    queue: Any = queue_of(world)
    loop = asyncio.get_running_loop()
    hub: Any = SimpleNamespace(
        draining=False, full=False, loop=loop, polls={}, delivered=0, feeder=lambda queue: feeder_of(queue, loop)
    )
    poll = asyncio.create_task(
        receive_messages(hub, queue, limit=10, wait_ms=60_000, visibility_ms=VISIBILITY_MS, receive=never)
    )
    await asyncio.sleep(0.01)
    world.stored(b"1", b"2")
    assert queue.stats().in_flight == 2
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    stats = queue.stats()
    assert (stats.in_flight, stats.ready, stats.consumers) == (0, 2, 0)
    lease = world.take()
    assert lease is not None and lease.attempt_of(0) == 1
