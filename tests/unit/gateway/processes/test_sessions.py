"""Sessions that go from one gateway to another, with leases in whatever kind of place: nodes of this process, over
loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from backend_store.client import Lease
from backend_store.model import Published
from backend_store.node.node import Node
from backend_store.remote.queues import placed_groups
from backend_store.remote.store import RemoteBackends
from backend_store.service.sessions import LeaveSessions
from gateway.processes import sessions
from gateway.processes.sessions import SharedSessions
from push.core.resume import Parked
from push.delivery.hub import Hub
from push.delivery.lookup_retry import found
from push.limits import SESSION_FETCH_SECONDS_MAX
from tests.support.lanes import Lanes, Taker, queue_at
from tests.support.lanes import make as make_laned
from tests.support.lanes import publish as publish_laned
from tests.support.patience import PATIENCE_S, eventually
from tests.unit.backend_store.remote.test_clusters import TENANT, World
from tests.unit.backend_store.remote.test_moved_streams import asked, opened, put, stream
from tests.unit.backend_store.remote.test_moved_streams import moved as stream_moved
from tests.unit.backend_store.remote.test_moves import in_cluster, moved, publish
from tests.unit.backend_store.remote.test_split import KEYS, published, spread

pytestmark = pytest.mark.anyio

KEY: Any = SimpleNamespace(id="key", tenant=TENANT, still_valid=lambda principal: True)


class Gate:
    """A gateway's sessions, without sockets."""

    def __init__(self, store: RemoteBackends) -> None:
        self.store = store
        self.sessions = SharedSessions(store)
        self.hub = Hub(store, KEY, clock_ms=store.own_ms, elsewhere=self.sessions)  # type: ignore[arg-type]
        self.sessions.give_from(self.hub)

    def park(self, queue: Any, leases: list[Lease], *, name: str = "cut") -> str:
        """A session that was cut; its id."""
        session = name + self.sessions.suffix
        held = {(queue.tenant, queue.place): leases}
        self.hub.parked.park(Parked(session, "key", self.hub.awake_ms() + 60_000, held, tenant=TENANT))
        return session

    async def fetch(self, session: str) -> list[Lease]:
        """What its session has here."""
        parked = await asyncio.wait_for(self.sessions.fetch(session, KEY), PATIENCE_S)
        assert parked is not None
        return [lease for leases in parked.held.values() for lease in leases]


class Scene(NamedTuple):
    """A queue with messages, at two gateways."""

    here: Any
    there: Any
    gates: tuple[Gate, Gate]
    nodes: list[Node]
    count: int
    world: World | None = None

    @property
    def in_flight(self) -> int:
        """Messages that are leased, in all places."""
        parts = [part for node in self.nodes for part in node.queues.partitions.values()]
        return sum(view.core.in_flight for part in parts for view in part.views.values())


def receipts(leases: list[Lease]) -> list[str]:
    return [f"{one.token}{n:02x}" for one in leases for n in range(one.bits.bit_length()) if one.bits >> n & 1]


async def settled(queue: Any, some: list[str]) -> list[bool]:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.settle(some, done.set_result)
    return [verdict.ok for verdict in await asyncio.wait_for(done, PATIENCE_S)]


@asynccontextmanager
async def laned() -> AsyncIterator[Scene]:
    async with Lanes() as hosts, over_lanes(hosts) as scene:
        yield scene


@asynccontextmanager
async def over_lanes(hosts: Lanes) -> AsyncIterator[Scene]:
    stores = [await hosts.store(), await hosts.store()]
    here = await make_laned(stores[0])
    there = await queue_at(stores[1])

    async def is_published() -> bool:
        return isinstance(await publish_laned(here, *(b"%d" % n for n in range(8)), keys=KEYS[:8]), Published)

    await eventually(is_published)
    gates = Gate(stores[0]), Gate(stores[1])
    yield Scene(here, there, gates, hosts.nodes, 8)
    for gate in gates:
        await gate.hub.close()


@asynccontextmanager
async def of_clusters(how: str) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        world = World(stack)
        await world.open()
        stores = [await world.ready(), await world.ready()]
        if how == "group":
            queue: Any = await stream(stores[0])
            await put(queue, 0, 1)
            await stream_moved(stores[0], "s", "eu")
            await put(queue, 2, 3)
            await asked(lambda told: queue.put_group("g", "earliest", "leases", told))
            here, count = await opened(queue, "g"), 4
            here.consumers += 1
            await eventually(lambda: len(here.pieces) == 2)
            there = await opened(stores[1].queue(TENANT, "s"), "g")  # type: ignore[arg-type]
        else:
            queue = await in_cluster(stores[0], "")
            if how == "split":
                await spread(stores[0], queue.name, "main", "eu")
                await published(queue, *KEYS[:8])
                count = 8
            else:
                await publish(queue, b"0", b"1")
                await moved(stores[0], queue.name, "eu")
                await publish(queue, b"2", b"3")
                count = 4
            here = queue
            await eventually(lambda: (TENANT, queue.name) in stores[1].metadata.queues)
            there = stores[1].queue(TENANT, queue.name)
        await eventually(lambda: there.definition.version == here.definition.version)
        gates = Gate(stores[0]), Gate(stores[1])
        yield Scene(here, there, gates, [*world.home.nodes, *world.eu.nodes], count, world)
        for gate in gates:
            await gate.hub.close()


SCENES: dict[str, Callable[[], Any]] = {
    "lanes": laned,
    "moved": lambda: of_clusters("moved"),
    "split": lambda: of_clusters("split"),
    "group": lambda: of_clusters("group"),
}


@pytest.mark.parametrize("kind", SCENES)
async def test_a_session_goes_over_with_leases_in_several_places(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_groups, "GROUP_LOOK_SECONDS", 0.02)
    async with SCENES[kind]() as scene:
        first, second = scene.gates
        taker = Taker(scene.here, scene.count)
        await eventually(lambda: len(taker.bodies) == scene.count)
        before = receipts(taker.leases)
        assert len({(one.state.partition, one.state.base >> 32) for one in taker.leases}) > 1
        session = first.park(scene.here, taker.leases)
        leases = await second.fetch(session)
        assert sorted(receipts(leases)) == sorted(before)
        await eventually(lambda: not any(one.bits for one in taker.leases), "the first gateway has heard of it")
        assert scene.in_flight == scene.count
        assert await settled(scene.there, before[::2]) == [True] * len(before[::2])
        taker.credit = scene.count
        second.hub._give_back(Parked(session, "key", 0, {(scene.there.tenant, scene.there.place): leases}))
        taker.leases.clear()
        scene.here.wanted_changed()
        await eventually(lambda: len(receipts(taker.leases)) == len(before[1::2]))
        tries = [one.attempt_of(n) for one in taker.leases for n in range(one.bits.bit_length()) if one.bits >> n & 1]
        assert tries == [2] * len(before[1::2])
        assert await settled(scene.here, receipts(taker.leases)) == [True] * len(before[1::2])
        assert scene.in_flight == 0


async def test_a_place_that_is_silent_keeps_its_own_leases_alone() -> None:
    """The client would get a new session, and lose all that it holds."""
    async with Lanes() as hosts, over_lanes(hosts) as scene:
        first, second = scene.gates
        taker = Taker(scene.here, scene.count)
        await eventually(lambda: len(taker.bodies) == scene.count)
        session = first.park(scene.here, taker.leases)
        others = sorted(receipts([one for one in taker.leases if one.state.partition != 1]))
        assert 0 < len(others) < scene.count
        hosts.own(1, None)
        await eventually(lambda: not scene.there.lanes[1].home.line.is_open)
        async with asyncio.timeout(SESSION_FETCH_SECONDS_MAX):
            leases = await second.fetch(session)
        assert sorted(receipts(leases)) == others


async def test_a_group_that_cannot_be_found_does_not_keep_the_session() -> None:
    async with of_clusters("group") as scene:
        first, second = scene.gates
        taker = Taker(scene.here, scene.count)
        await eventually(lambda: len(taker.bodies) == scene.count)
        session = first.park(scene.here, taker.leases)
        assert scene.world is not None
        await scene.world.eu.go()
        async with asyncio.timeout(SESSION_FETCH_SECONDS_MAX):
            assert await second.fetch(session) == []


async def test_a_group_that_was_deleted_meanwhile_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_groups, "GROUP_LOOK_SECONDS", 0.02)
    async with of_clusters("group") as scene:
        first, second = scene.gates
        taker = Taker(scene.here, scene.count)
        await eventually(lambda: len(taker.bodies) == scene.count)
        session = first.park(scene.here, taker.leases)
        await first.sessions.leave(first.hub)
        await asked(lambda told: scene.here.stream.delete_group("g", told))
        assert await second.fetch(session) == []
        assert await found(lambda: scene.there.stream.find_group("g")) is None


async def test_a_session_with_very_many_leases_goes_over_with_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others return to their queue."""
    async with of_clusters("split") as scene:
        first, second = scene.gates
        taker = Taker(scene.here, scene.count)
        await eventually(lambda: len(taker.bodies) == scene.count)
        assert len(taker.leases) > 3
        monkeypatch.setattr(sessions, "SESSION_BYTES_MAX", 400)
        leases = await second.fetch(first.park(scene.here, taker.leases))
        assert 0 < len(leases) < len(taker.leases)


async def test_what_a_gateway_leaves_goes_in_requests_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    async with of_clusters("split") as scene:
        first, second = scene.gates
        taker = Taker(scene.here, scene.count)
        await eventually(lambda: len(taker.bodies) == scene.count)
        asks: list[LeaveSessions] = []
        ask = first.store.ask

        async def heard(operation: Any, **how: Any) -> Any:
            if isinstance(operation, LeaveSessions):
                asks.append(operation)
            return await ask(operation, **how)

        monkeypatch.setattr(first.store, "ask", heard)
        monkeypatch.setattr(sessions, "LEAVE_BYTES_SOFT_MAX", 50)
        names = [first.park(scene.here, [lease], name=f"cut{n}") for n, lease in enumerate(taker.leases)]
        await first.sessions.leave(first.hub)
        assert [len(one.sessions) for one in asks] == [1] * len(taker.leases)
        assert [len(await second.fetch(name)) for name in names] == [1] * len(names)
