"""Frames that are handled together, of queues of a further cluster: while it is away, was never met, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from backend_store.model import ClusterAway
from backend_store.remote.store import RemoteBackends
from gateway.desk import GatewayDesk
from gateway.identity.authentication import Keyring
from gateway.identity.tickets import TicketOffice
from gateway.usage.meter import Meter
from push.delivery.hub import Hub
from push.transports.longpoll import receive_messages
from tests.support.patience import PATIENCE_S, eventually
from tests.unit.backend_store.remote import test_clusters as clusters
from tests.unit.push.session import test_runs
from tests.unit.push.session.test_runs import ANN, Frame, of_sub, publish
from throttling.limiter import MemoryLimiter

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]
impatient = clusters.impatient
handled = test_runs.handled

RUN = 4


class World(clusters.World):
    """Two clusters, `near` in the first, `far` and `stream` in the second, and gateways with sessions."""

    async def session(self) -> test_runs.World:
        store = await self.gateway()
        desk = GatewayDesk(store, Keyring(store, lambda: 1), TicketOffice(lambda: 1), allowed_origins=(), dev=False)  # type: ignore[arg-type]
        hub = Hub(store, desk, clock_ms=store.steady_ms, meter=(meter := Meter("node", lambda: 1)))  # type: ignore[arg-type]
        self._opened.push_async_callback(hub.close)
        return test_runs.World(hub, meter, MemoryLimiter(), "json")

    async def leave(self, store: RemoteBackends) -> None:
        await self.eu.go()
        await eventually(lambda: all(home.line.is_away for home in store.clusters["eu"].homes))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("backend_store.remote.store.OTHERS_SECONDS_MAX", 0.2)
    async with AsyncExitStack() as opened:
        made = World(opened)
        await made.open()
        store = await made.ready()
        for name in ("near", "far", "beside"):
            await clusters.make(store, name)
        await clusters.make(store, "stream", kind="stream")
        yield made


def store_of(session: test_runs.World) -> RemoteBackends:
    store: Any = session.hub.store
    assert isinstance(store, RemoteBackends)
    return store


async def there(session: test_runs.World) -> None:
    await eventually(lambda: all(one.is_ready for one in store_of(session).clusters.values()))


def turn(session: test_runs.World, *frames: Frame) -> None:
    session.hear(frames)
    session.session.turn_ended()


async def answers(session: test_runs.World, count: int) -> list[tuple[Any, str]]:
    """Id, and "ok" or what went wrong, of the next answers."""

    def found() -> list[Frame]:
        return [one for one in session.wire.frames if one["type"] in ("ok", "error")]

    await eventually(lambda: len(found()) >= count)
    told = [(one.get("id"), "ok" if one["type"] == "ok" else one["problem"]["code"]) for one in found()]
    session.wire.frames = [one for one in session.wire.frames if one["type"] not in ("ok", "error")]
    return told


def publishes(queue: str, first: int = 0) -> list[Frame]:
    return [publish(queue, number, id=number) for number in range(first, first + RUN)]


async def test_each_frame_is_answered_while_the_cluster_is_away(world: World, handled: list[int]) -> None:
    session = await world.session()
    await there(session)
    turn(session, *publishes("far"))
    assert await answers(session, RUN) == [(number, "ok") for number in range(RUN)]
    turn(session, {"type": "subscribe", "queue": "far", "credit": RUN, "id": "s"})
    await eventually(lambda: len(of_sub(session, 1)) == RUN)
    await world.leave(store_of(session))
    receipts = [one["receipt"] for one in of_sub(session, 1)]
    session.wire.frames.clear()
    turn(session, *({"type": "ack", "queue": "far", "receipts": [one]} for one in receipts), *publishes("far"))
    assert await answers(session, RUN) == [(number, "unavailable") for number in range(RUN)]
    assert handled == [RUN, RUN, RUN], "the acks among them, of which nobody hears"
    turn(session, *publishes("near"))
    assert await answers(session, RUN) == [(number, "ok") for number in range(RUN)]
    assert (session.session.in_progress, session.hub.intake.room.used, session.wire.closed) == (0, 0, 0)
    assert not any(home.line.is_waited_for for home in store_of(session).homes)


async def test_each_frame_is_refused_where_the_cluster_was_never_met(world: World, handled: list[int]) -> None:
    await world.eu.go()
    session = await world.session()
    turn(session, *({"type": "ack", "queue": "far", "receipts": ["x"]} for _ in range(RUN)), *publishes("far"))
    told = await answers(session, 2 * RUN)
    assert told == [(None, "unavailable")] * RUN + [(number, "unavailable") for number in range(RUN)]
    assert (handled, session.session.in_progress, session.wire.closed) == ([], 0, 0)


async def test_frames_that_wait_for_a_cluster_are_answered_when_their_queue_is_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await world.session()
    await there(session)
    lines = [home.line for home in store_of(session).clusters["eu"].homes]
    for line in lines:
        line._patience_s = 60.0
    await world.eu.go()
    await eventually(lambda: not any(line.is_open for line in lines))
    turn(session, *publishes("far"))
    await store_of(session).delete_queue(ANN.tenant, "far")
    turn(session, *publishes("far", RUN))
    assert await answers(session, RUN) == [(RUN + number, "queue-not-found") for number in range(RUN)]
    await world.eu.come()
    assert [number for number, _ in await answers(session, RUN)] == list(range(RUN)), "whatever became of them"
    assert (session.session.in_progress, session.hub.intake.room.used) == (0, 0)


@pytest.mark.parametrize("group", [{}, {"group": "g", "from": "earliest"}], ids=["queue", "group"])
async def test_a_consumer_whose_credit_came_back_in_parts_goes_on_when_the_cluster_is_back(
    world: World, group: Frame
) -> None:
    session = await world.session()
    await there(session)
    name, credit, some = "stream" if group else "far", 40, 25
    turn(session, {"type": "subscribe", "queue": name, "credit": credit, "id": "s", **group})
    for number in range(some):
        turn(session, publish(name, number))
    await eventually(lambda: len(of_sub(session, 1)) == some)
    for one in of_sub(session, 1):
        turn(session, {"type": "ack", "queue": name, "receipts": [one["receipt"]]})
        await asyncio.sleep(0)
    queue = store_of(session).here(ANN.tenant, name)
    assert queue.definition.cluster == "eu"
    await eventually(lambda: not any(list(one.stock.held()) for one in (queue, *queue.groups.values())))
    await world.leave(store_of(session))
    await world.eu.come()
    await eventually(lambda: queue.home.line.is_open)
    session.wire.frames.clear()
    for number in range(credit):
        turn(session, publish(name, number))
    await eventually(lambda: len(of_sub(session, 1)) == credit, lambda: f"{len(of_sub(session, 1))} came")


async def test_a_poll_that_waits_when_the_cluster_goes_is_not_told_that_nothing_is_ready(world: World) -> None:
    session = await world.session()
    await there(session)
    queue: Any = store_of(session).here(ANN.tenant, "far")

    async def never() -> Any:
        await asyncio.Event().wait()

    poll = asyncio.create_task(
        receive_messages(session.hub, queue, limit=1, wait_ms=1_500, visibility_ms=30_000, receive=never)
    )
    await eventually(lambda: bool(session.hub.polls))
    await world.leave(store_of(session))
    with pytest.raises(ClusterAway):
        await asyncio.wait_for(poll, PATIENCE_S)
