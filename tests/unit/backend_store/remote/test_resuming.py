"""A gateway that connects anew hears of what it does not know, and a new one of everything bit by bit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.metadata.documents import Document
from backend_store.model import Published, QueueConfig
from backend_store.node.node import Node
from backend_store.remote.definitions import adopted
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.home import Home
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.store import RemoteBackends
from backend_store.service import definitions, serving, telling
from backend_store.service.defining import GoneQueues
from backend_store.service.definitions import Definitions
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import Defined
from push.delivery.lookup_retry import LookingUp
from tests.support.lanes import Taker
from tests.support.patience import eventually
from tests.unit.backend_store.remote.test_clusters import publish

pytestmark = pytest.mark.anyio

TENANT = "default"
QUEUES = 60
PER_FRAME = 10
FIRST, SECOND = 0, 1

_news = msgspec.msgpack.Decoder(Definitions).decode


class World(NamedTuple):
    """Two shards, the first of which has the definitions, and one gateway's store."""

    nodes: list[Node]
    services: dict[int, StoreService]
    store: RemoteBackends
    told: list[tuple[int, Defined]]
    """By which shard, as the gateway heard it."""

    async def make(self, name: str) -> None:
        await self.nodes[FIRST].metadata.create_queue(TENANT, name, QueueConfig(), 1)

    async def away(self, shard: int) -> None:
        """The gateway loses its connection, and finds the shard again when that is served."""
        self.services.pop(shard).close()
        await eventually(lambda: not self.store.homes[shard].line.is_open)
        self.told.clear()

    async def back(self, shard: int) -> None:
        self.serve(shard)
        await eventually(lambda: self.store.homes[shard].line.is_open)

    def serve(self, shard: int) -> None:
        self.services[shard] = StoreService(EmbeddedStore(self.nodes[shard]), shards=2 if shard == FIRST else 1)

    async def another_leads(self, shard: int) -> None:
        engine = self.nodes[shard].engine
        assert isinstance(engine, MemoryEngine)
        await self.nodes[shard].close()
        self.nodes[shard] = Node(engine.crash(), directory=None)
        await self.nodes[shard].start()

    def told_by(self, shard: int) -> list[Defined]:
        return [frame for by, frame in self.told if by == shard]

    @property
    def is_settled(self) -> bool:
        """The gateway and the second shard have all queues that are defined, and no others."""
        metadata = self.nodes[FIRST].metadata
        every = {**metadata.queues, **metadata.elsewhere.by_name}
        there = {name: one for name, one in every.items() if one.shard == SECOND}
        return self.store.metadata.queues == every and self.nodes[SECOND].metadata.queues == there


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(adopted, "DROP_AFTER_SECONDS", 0.01)
    for module in (definitions, telling):
        monkeypatch.setattr(module, "DEFINITIONS_PER_FRAME_MAX", PER_FRAME)
    told: list[tuple[int, Defined]] = []
    defined = Home.defined

    def heard(home: Home, frame: Defined, *, is_first: bool) -> None:
        told.append((home.shard, frame))
        defined(home, frame, is_first=is_first)

    monkeypatch.setattr(Home, "defined", heard)
    nodes = [Node(MemoryEngine(), directory=None) for _ in range(2)]
    services: dict[int, StoreService] = {}
    server = StoreServer(services)
    port = await server.listen("127.0.0.1", 0, None)
    for node in nodes:
        await node.start()
    nodes[FIRST].metadata.elsewhere.shards = 2
    for number in range(QUEUES):
        await nodes[FIRST].metadata.create_queue(TENANT, f"q{number}", QueueConfig(), 1)
    store = RemoteBackends(FixedDirectory([("127.0.0.1", port)]), None, LookingUp)
    world = World(nodes, services, store, told)
    for shard in (FIRST, SECOND):
        world.serve(shard)
    try:
        await store.open()
        await eventually(lambda: world.is_settled)
        yield world
    finally:
        await store.close()
        for service in services.values():
            service.close()
        await server.close()
        for node in nodes:
            await node.close()


async def test_a_new_gateway_hears_of_everything_bit_by_bit(world: World) -> None:
    parts = [frame for frame in world.told_by(FIRST) if not frame.is_last]
    assert len(parts) >= QUEUES / PER_FRAME
    assert all(_news(frame.data).size <= PER_FRAME for frame in parts)
    assert len(world.store.metadata.queues) == QUEUES


async def test_a_gateway_that_is_back_hears_of_what_changed_while_it_was_away(world: World) -> None:
    kept, gone = world.store.here(TENANT, "q1"), world.store.here(TENANT, "q2")
    anew, moved = world.store.here(TENANT, "q4"), world.store.here(TENANT, "q3.dead")
    deleted: list[RemoteQueue] = []
    world.store.on_deleted(deleted.append)
    await world.away(FIRST)
    metadata = world.nodes[FIRST].metadata
    for name in ("q2", "q3", "q4"):
        if (TENANT, name) in metadata.queues:
            await EmbeddedStore(world.nodes[FIRST]).delete_queue(TENANT, name)
        else:
            await metadata.delete_elsewhere(TENANT, name)
    await world.make("q4")
    await world.make("new")
    await metadata.update_queue(TENANT, "q1", QueueConfig(max_attempts=7), 1)
    await world.nodes[FIRST].documents.write([Document("rule", "one", b"1")])
    await world.back(FIRST)
    assert [(frame.goes_on, frame.is_last) for frame in world.told_by(FIRST)[:1]] == [(True, True)]
    assert sum(_news(frame.data).size for frame in world.told_by(FIRST)) < 10, "it knows all the others"
    assert kept.config.max_attempts == 7 and world.store.documents.get("rule", "one") == b"1"
    assert {gone, anew, moved} <= set(deleted) and kept not in deleted
    assert world.store.here(TENANT, "q4").uid != anew.uid
    await eventually(lambda: world.is_settled, "the other shard has heard of it, too")


async def test_a_gateway_that_is_back_hears_of_much_bit_by_bit(world: World) -> None:
    kept = world.store.here(TENANT, "q1")
    await world.away(FIRST)
    metadata = world.nodes[FIRST].metadata
    for number in range(10, 10 + 2 * PER_FRAME):
        if (TENANT, f"q{number}") in metadata.queues:
            await EmbeddedStore(world.nodes[FIRST]).delete_queue(TENANT, f"q{number}")
        else:
            await metadata.delete_elsewhere(TENANT, f"q{number}")
        await world.make(f"new{number}")
    await world.back(FIRST)
    first = world.told_by(FIRST)[0]
    assert first.goes_on and not first.is_last
    assert world.store.here(TENANT, "q1") is kept
    await eventually(lambda: world.is_settled)


async def test_a_shard_that_is_back_is_told_of_what_changed_while_it_was_away(world: World) -> None:
    there = [name for (_, name) in world.nodes[SECOND].metadata.queues]
    await world.away(SECOND)
    metadata = world.nodes[FIRST].metadata
    await metadata.update_queue(TENANT, there[0], QueueConfig(max_attempts=7), 1)
    await metadata.delete_elsewhere(TENANT, there[1])
    await world.make("new")
    await world.make("newer")
    await eventually(lambda: (TENANT, "newer") in world.store.metadata.queues)
    await world.back(SECOND)
    assert world.told_by(SECOND)[0].goes_on
    await eventually(lambda: world.is_settled)


async def test_a_new_leader_tells_everything_and_what_it_does_not_tell_of_has_gone(world: World) -> None:
    gone = world.store.here(TENANT, "q2")
    deleted: list[RemoteQueue] = []
    world.store.on_deleted(deleted.append)
    await world.nodes[FIRST].documents.write([Document("rule", "one", b"1")])
    for shard in (FIRST, SECOND):
        await world.away(shard)
        await world.another_leads(shard)
    metadata = world.nodes[FIRST].metadata
    if (TENANT, "q2") in metadata.queues:
        await EmbeddedStore(world.nodes[FIRST]).delete_queue(TENANT, "q2")
    else:
        await metadata.delete_elsewhere(TENANT, "q2")
    await world.nodes[FIRST].documents.write([Document("rule", "one", None)])
    await world.make("new")
    for shard in (FIRST, SECOND):
        await world.back(shard)
    assert not any(frame.goes_on for _, frame in world.told)
    assert deleted == [gone] and world.store.documents.get("rule", "one") is None
    await eventually(lambda: world.is_settled)


async def test_who_is_lost_while_it_hears_everything_hears_it_anew(world: World) -> None:
    """What it has is neither all nor what it was: nobody can go on from there."""
    await world.away(FIRST)
    await world.another_leads(FIRST)
    home, defined = world.store.homes[FIRST], Home.defined
    heard = 0

    def lost_midway(home: Home, frame: Defined, *, is_first: bool) -> None:
        nonlocal heard
        heard += home.shard == FIRST
        if heard == 3:
            home.line._connection.transport.abort()  # type: ignore[union-attr]
        defined(home, frame, is_first=is_first)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Home, "defined", lost_midway)
        world.serve(FIRST)
        await eventually(lambda: heard > 3 and home.line.is_open)
    assert not any(frame.goes_on for frame in world.told_by(FIRST))
    await eventually(lambda: world.is_settled)


async def test_an_answer_to_a_receive_stays_leased_though_its_line_was_lost_just_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.store.create_queue(TENANT, "polled", QueueConfig(lease_mode="replicated", encrypted=False))
    queue = world.store.here(TENANT, "polled")
    shard = queue.home.shard
    for body in (b"0", b"1"):
        assert isinstance(await publish(queue, body), Published)
    taker = Taker(queue, 2)  # type: ignore[arg-type]
    await eventually(lambda: len(taker.bodies) == 2)
    await world.away(shard)
    queue.detach(taker.leases[0])
    await world.another_leads(shard)
    await world.back(shard)
    await queue.ask(GoneQueues([]), may_repeat=True)
    there = EmbeddedStore(world.nodes[shard]).here(TENANT, "polled")
    assert there.stats().in_flight == 2
    monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.01)
    await world.store.close()
    await eventually(lambda: (there.stats().in_flight, there.stats().ready) == (1, 1))


async def test_a_gateway_that_stops_has_its_leases_kept_though_a_line_was_lost_just_then(world: World) -> None:
    queue = world.store.here(TENANT, "q0")
    shard = queue.home.shard
    assert isinstance(await publish(queue, b"0"), Published)
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    await eventually(lambda: len(taker.bodies) == 1)
    await world.away(shard)
    world.store.keep_leases(60_000)
    await world.another_leads(shard)
    await world.back(shard)
    await eventually(lambda: world.services[shard].visitors[world.store.id].keeps_s == 60.0)
