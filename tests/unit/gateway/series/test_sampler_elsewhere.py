"""The sampler of a gateway whose queues lie with backends: it looks at what they told of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from backend_store.core.log.chunk import KIND_JSON, Draft
from gateway.admission.loop_lag import LoopLag
from gateway.series.sampler import Sampler
from tests.support.far_queues import FarQueues
from tests.support.stores import drained, made, opened, published
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

MESSAGE = Draft(KIND_JSON, b"1", {})
QUEUES = 30


class Hub:
    """Nobody is connected."""

    delivered = 0
    sessions = waiting = streams = polls = ()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FarQueues]:
    backend = await opened()
    names = [(await made(backend, f"q{number}")).name for number in range(QUEUES)]
    world = FarQueues(backend, monkeypatch)
    world.define(*names)
    yield world
    await world.close()


async def test_quiet_queues_elsewhere_are_not_looked_at(world: FarQueues, clock: Clock) -> None:
    """A gateway looked at all of them every other second: a fifth of a second for 100,000."""
    sampler = Sampler(cast(Any, world.gateway), cast(Any, Hub()), LoopLag(), clock_ms=clock)

    async def looked_at() -> int:
        before = sampler.looked_at
        await world.refresh()
        clock.ms += 5_000
        await sampler.look()
        return sampler.looked_at - before

    def ready(name: str) -> int | None:
        watched = sampler.book.of_queue("default", name)
        return watched.pulse.ready if watched is not None else None

    await sampler.look()
    assert not sampler.book.watched, "their numbers are not here yet"
    assert await looked_at() == QUEUES and ready("q3") == 0
    assert await looked_at() == 0
    await published(world.backend.here("default", "q3"), MESSAGE)
    assert await looked_at() == 1 and ready("q3") == 1
    world.gateway.here("default", "q4").consumers += 1
    assert await looked_at() == 1
    watched = sampler.book.of_queue("default", "q4")
    assert watched is not None and watched.pulse.consumers == 1
    await made(world.backend, "new")
    world.define("new", gone=("q5",))
    await sampler.look()
    assert ready("new") is None and ready("q5") is None
    await published(world.backend.here("default", "new"), MESSAGE, MESSAGE)
    await drained(world.backend.here("default", "q3"))
    await world.refresh()
    await sampler.look()
    assert ready("new") == 2 and ready("q3") == 0 and not sampler._unmet and not sampler._unmet_uids
    assert len(sampler.book.watched) == QUEUES
