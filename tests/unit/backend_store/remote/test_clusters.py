"""Several clusters behind one gateway: nodes of this process, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.log.chunk import KIND_JSON, Columns
from backend_store.core.outer.clusters import Cluster, Report, heard
from backend_store.core.outer.documents import KIND, stored
from backend_store.core.outer.limits import REPORT_MS_MAX
from backend_store.metadata.documents import Document
from backend_store.model import (
    ClusterAway,
    Conflict,
    InvalidRequest,
    Published,
    PushqError,
    QueueConfig,
    Quotas,
    Unavailable,
)
from backend_store.node.node import Node, wall_clock_ms
from backend_store.remote.cluster import ClusterAt
from backend_store.remote.definitions import adopted
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.limits import QUEUE_NEEDS
from backend_store.remote.line import line as lines
from backend_store.remote.queues.laned import LanedQueue
from backend_store.remote.queues.placed import PlacedQueue
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.store import RemoteBackends
from backend_store.service.serving import Operate, StoreServer, StoreService
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import BackendAt, Copies
from gateway.admission.stored_quotas import StoredQuotas
from push.delivery.lookup_retry import LookingUp
from tests.support.lanes import Lanes, Taker
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

TENANT = "default"
PLAIN = QueueConfig(encrypted=False)


class Shards:
    """A cluster: so many shards, each a node, behind one address."""

    def __init__(self, name: str, shards: int = 2):
        self.name = name
        self.nodes = [Node(MemoryEngine(), directory=None) for _ in range(shards)]
        self.services: dict[int, StoreService] = {}
        self._server: StoreServer | None = None
        self._port = 0
        self.copies: list[Copies] = []
        """What is said of how its shards are copied."""
        self.there: list[BackendAt] = []
        """What is said of its backends."""
        self.operate: Operate | None = None
        """Answers an operator."""

    async def open(self) -> None:
        for node in self.nodes:
            await node.start()
        await self.come()

    async def come(self) -> None:
        for shard, node in enumerate(self.nodes):
            usual = [one for one in self.copies if one.mode != "async"] or self.nodes
            shards = len(usual) if shard == 0 else 1
            self.services[shard] = StoreService(EmbeddedStore(node), shards=shards, copies=lambda: self.copies)
        self._server = StoreServer(
            self.services, operate=self.operate, there=lambda: self.there, copies=lambda: self.copies
        )
        self._port = await self._server.listen("127.0.0.1", self._port, None)

    async def go(self) -> None:
        """Nobody can connect any more; what was stored is there when it comes back."""
        for service in self.services.values():
            service.close()
        if self._server is not None:
            await self._server.close()
        self._server = None

    async def close(self) -> None:
        await self.go()
        for node in self.nodes:
            await node.close()

    def say(self, *copies: Copies) -> None:
        """How its shards are copied from now on, to gateways that are connected, too."""
        self.copies = list(copies)
        assert self._server is not None
        self._server.tell_backends()

    @property
    def at(self) -> ClusterAt:
        address = "127.0.0.1", self._port
        return ClusterAt(self.name, FixedDirectory([address]), [address])

    @property
    def queues(self) -> list[str]:
        """Names of the queues that lie in its shards."""
        return sorted(one.name for node in self.nodes for one in node.metadata.queues.values())

    @property
    def first(self) -> Node:
        return self.nodes[0]


class World:
    """A home cluster and one or more further ones, and gateways."""

    def __init__(self, opened: AsyncExitStack):
        self._opened = opened
        self.home = Shards("main")
        self.eu = Shards("eu")

    async def open(self) -> None:
        for one in (self.home, self.eu):
            await one.open()
            self._opened.push_async_callback(one.close)

    async def gateway(self, home: ClusterAt | None = None, others: Sequence[ClusterAt] | None = None) -> RemoteBackends:
        at = home or self.home.at
        given = [self.eu.at] if others is None else others
        store = RemoteBackends(at.directory, None, LookingUp, addresses=at.addresses, name=at.name, others=given)
        self._opened.push_async_callback(store.close)
        await store.open()
        return store

    async def ready(self) -> RemoteBackends:
        """A gateway that may put queues into both."""
        store = await self.gateway()
        await eventually(lambda: all(one.is_ready for one in store.clusters.values()))
        return store


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as opened:
        made = World(opened)
        await made.open()
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "AWAY_SECONDS", 0.1)


async def make(store: RemoteBackends, name: str, **settings: Any) -> RemoteQueue:
    return (await store.create_queue(TENANT, name, msgspec.structs.replace(PLAIN, **settings)))[0]


async def publish(queue: RemoteQueue, *bodies: bytes) -> Published | PushqError:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    queue.publish(list(queue.blocks(Columns(KIND_JSON, list(bodies)), None).blocks), done.set_result)
    return await asyncio.wait_for(done, PATIENCE_S)


async def consume(queue: RemoteQueue, count: int) -> list[bytes]:
    taker = Taker(queue, count)  # type: ignore[arg-type]
    await eventually(lambda: len(taker.bodies) >= count)
    acked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.settle(taker.receipts, acked.set_result)
    assert all(verdict.ok for verdict in await asyncio.wait_for(acked, PATIENCE_S))
    return taker.bodies


def clusters_of(*queues: RemoteQueue) -> list[str]:
    return [queue.definition.cluster for queue in queues]


async def say(store: RemoteBackends, *rows: Cluster) -> None:
    """As the manager; returns when the gateway has heard it."""
    await store.documents.write([Document(KIND, row.name, stored(row)) for row in rows])
    await eventually(lambda: {row.name: stored(row) for row in rows}.items() <= dict(store.documents.all(KIND)).items())


def report(name: str, used: float, nodes: int = 1, *, at_ms: int | None = None, is_healthy: bool = True) -> Cluster:
    return heard(None, Report(name, wall_clock_ms() if at_ms is None else at_ms, nodes, used, is_healthy))


# ------------------------------------------------------------------------------------------------------- the choice


async def test_without_a_manager_queues_go_where_fewest_are_for_each_backend(world: World) -> None:
    store = await world.ready()
    made = [await make(store, f"q{number}") for number in range(4)]
    assert clusters_of(*made) == ["", "eu", "", "eu"]
    assert len({queue.definition.place for queue in made}) == 4, "and within a cluster over its shards"
    assert world.eu.queues == ["q1", "q3"]
    again, is_new = await store.create_queue(TENANT, "q1", PLAIN)
    assert not is_new and again.definition == made[1].definition


async def test_queues_made_at_once_are_spread(world: World) -> None:
    store = await world.ready()
    made = await asyncio.gather(*(make(store, f"q{number}") for number in range(6)))
    assert sorted(clusters_of(*made)) == ["", "", "", "eu", "eu", "eu"]


async def test_the_manager_says_where_most_is_to_spare(world: World) -> None:
    store = await world.ready()
    await say(store, report("main", 0.5), report("eu", 0.1))
    assert clusters_of(*[await make(store, f"q{number}") for number in range(3)]) == ["eu"] * 3
    await say(store, report("main", 0.5), report("eu", 0.85))
    assert clusters_of(await make(store, "other")) == [""]


async def test_queues_that_a_report_does_not_know_yet_count(world: World) -> None:
    """Else all that come between two reports go to one cluster."""
    store = await world.ready()
    at_ms = wall_clock_ms() - 1
    await say(store, report("main", 0.5 + QUEUE_NEEDS / 2, at_ms=at_ms), report("eu", 0.5, at_ms=at_ms))
    assert clusters_of(*[await make(store, f"q{number}") for number in range(4)]) == ["eu", "", "eu", ""]


async def test_no_cluster_with_room_is_said_with_the_state_of_each(world: World) -> None:
    store = await world.ready()
    await say(store, report("main", 0.9), report("eu", 0.2, is_healthy=False))
    with pytest.raises(Unavailable, match="main is hot, 90% used, eu is unhealthy") as caught:
        await make(store, "q")
    assert caught.value.retry_after_ms
    await say(store, report("eu", 0.2))
    assert clusters_of(await make(store, "q")) == ["eu"]


async def test_a_manager_that_fell_silent_is_not_believed(world: World) -> None:
    store = await world.ready()
    late_ms = wall_clock_ms() - REPORT_MS_MAX - 1_000
    await say(store, report("main", 0.9, at_ms=late_ms), report("eu", 0.9, at_ms=late_ms))
    assert clusters_of(await make(store, "a"), await make(store, "b")) == ["", "eu"]


async def test_a_queue_goes_beside_those_that_it_names(world: World) -> None:
    store = await world.ready()
    dead = [await make(store, f"dead{number}") for number in range(4)]
    for number, queue in enumerate(dead):
        one = await make(store, f"q{number}", dead_letter_queue=queue.name)
        assert one.definition.place == queue.definition.place
    with pytest.raises(Conflict, match="of cluster 'eu'"):
        await make(store, "torn", dead_letter_queue="dead0", colocate_with="dead1")


async def test_queues_go_to_independent_hosts_as_well_with_a_lane_at_each_or_one_alone(world: World) -> None:
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        further = ClusterAt("hosts", FixedDirectory(addresses), addresses)
        store = await world.gateway(others=[further])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        made = [await make(store, f"q{number}") for number in range(3)]
        assert clusters_of(*made).count("hosts") == 2, "it has four backends, and home has one"
        laned = next(queue for queue in made if queue.definition.cluster)
        assert isinstance(laned, PlacedQueue) and isinstance(laned.current, LanedQueue)
        assert len(laned.current.lanes) == 3

        async def is_published() -> bool:
            return isinstance(await publish(laned, b"1", b"2", b"3"), Published)

        await eventually(is_published, "it is with all of its hosts")
        assert sorted(await consume(laned, 3)) == [b"1", b"2", b"3"]
        bounded = [await make(store, f"b{number}", max_messages=5) for number in range(3)]
        single = next(queue for queue in bounded if queue.definition.cluster)
        assert isinstance(single, PlacedQueue) and not isinstance(single.current, LanedQueue)
        with pytest.raises(InvalidRequest, match="independent host"):
            await store.update_queue(TENANT, laned.name, msgspec.structs.replace(PLAIN, max_messages=5), 1)
        await store.delete_queue(TENANT, laned.name)
        assert all(laned.name not in [one.name for one in node.metadata.queues.values()] for node in hosts.nodes)
        await store.close()


# ---------------------------------------------------------------------------------------------- queues of a cluster


async def test_messages_lie_in_the_cluster_of_their_queue(world: World) -> None:
    store = await world.ready()
    near, far = await make(store, "near"), await make(store, "far")
    assert clusters_of(near, far) == ["", "eu"]
    for queue in (near, far):
        assert isinstance(await publish(queue, b"1", b"2"), Published)
        assert await consume(queue, 2) == [b"1", b"2"]
    assert (world.home.queues, world.eu.queues) == (["near"], ["far"])


async def test_a_changed_queue_is_changed_there_and_a_deleted_one_goes(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    changed = await store.update_queue(TENANT, "far", msgspec.structs.replace(PLAIN, max_attempts=3), 1)
    assert changed is not None
    (there,) = [one for node in world.eu.nodes for one in node.metadata.queues.values()]
    assert there == changed.definition and there.config.max_attempts == 3
    await store.delete_queue(TENANT, "far")
    await eventually(lambda: world.eu.queues == [])


async def test_another_gateway_finds_all(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    assert isinstance(await publish(await make(store, "far"), b"1"), Published)
    await store.close()
    other = await world.gateway()
    assert await consume(other.queue(TENANT, "far"), 1) == [b"1"]


async def test_messages_are_not_moved_between_clusters(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    with pytest.raises(Conflict, match="in another cluster than"):
        await store.move_queue(TENANT, "far", "near")


# ------------------------------------------------------------------------------------------------------------- away


@pytest.mark.usefixtures("impatient")
async def test_a_cluster_that_is_away_stops_its_own_queues_alone(world: World) -> None:
    store = await world.ready()
    near, far = await make(store, "near"), await make(store, "far")
    gone = await make(store, "x"), await make(store, "gone")
    assert gone[1].definition.cluster == "eu"
    assert isinstance(await publish(far, b"kept"), Published)
    held = Taker(far, 1)  # type: ignore[arg-type]
    await eventually(lambda: bool(held.bodies))
    await world.eu.go()
    await eventually(lambda: store.clusters["eu"].first.line.is_away)
    await eventually(lambda: far.home.line.is_away)
    refused = await publish(far, b"1")
    assert isinstance(refused, ClusterAway) and "'eu'" in refused.detail and refused.retry_after_ms
    acked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    far.settle(held.receipts, acked.set_result)
    assert isinstance(await asyncio.wait_for(acked, PATIENCE_S), ClusterAway)
    with pytest.raises(ClusterAway):
        far.stats()
    with pytest.raises(ClusterAway):
        far.check_there()
    near.check_there()
    with pytest.raises(ClusterAway):
        await far.ask(None)
    with pytest.raises(ClusterAway):
        await store.update_queue(TENANT, "far", msgspec.structs.replace(PLAIN, max_attempts=3), 1)
    assert store.metadata.queues[TENANT, "far"].version == 1
    assert isinstance(await publish(near, b"1"), Published)
    assert clusters_of(*[await make(store, f"new{number}") for number in range(3)]) == [""] * 3
    assert ("default", "far") in set(await _names(store))
    await store.delete_queue(TENANT, "gone")
    await world.eu.come()
    await eventually(lambda: world.eu.queues == ["far"])
    await eventually(lambda: far.home.line.is_open)
    assert isinstance(await publish(far, b"2"), Published)


async def test_further_clusters_go_on_while_the_home_cluster_is_away(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    far = await make(store, "far")
    await world.home.go()
    await eventually(lambda: not store.first.line.is_open)
    assert isinstance(await publish(far, b"1"), Published)
    assert await consume(far, 1) == [b"1"]
    await world.home.come()
    await eventually(lambda: store.first.line.is_open)
    assert clusters_of(await make(store, "new")) == [""]


async def test_what_was_changed_before_a_gateway_is_back_at_the_home_cluster_is_told_to_further_ones(
    world: World,
) -> None:
    """Nobody else tells them, and they had no reason to ask."""
    store = await world.ready()
    await make(store, "near")
    far = await make(store, "far")
    await world.home.go()
    await eventually(lambda: not store.first.line.is_open)
    changed = await world.home.first.metadata.update_queue(
        TENANT, "far", msgspec.structs.replace(PLAIN, max_attempts=3), far.definition.version
    )
    await world.home.come()
    await eventually(lambda: store.first.line.is_open)
    await eventually(lambda: far.home.adopted.knows(changed))
    assert far.config.max_attempts == 3
    assert all(one.line.connections == 1 for one in store.clusters["eu"].homes)


async def test_what_a_shard_refuses_for_now_is_told_to_it_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing else is defined meanwhile; and what is defined meanwhile does not wait for that."""
    store = await world.ready()
    far = await in_further(store, "far")
    node = next(one for one in world.eu.nodes if one.metadata.queues)
    adopt, refusals = node.metadata.adopt, 0

    async def refuse(definition: Any) -> bool:
        nonlocal refusals
        if definition.name == "far" and refusals < 3:
            refusals += 1
            raise Unavailable("not now", retry_after_ms=100)
        return await adopt(definition)

    monkeypatch.setattr(node.metadata, "adopt", refuse)
    changed = await world.home.first.metadata.update_queue(
        TENANT, "far", msgspec.structs.replace(PLAIN, max_attempts=3), far.definition.version
    )
    await eventually(lambda: far.home.adopted.knows(changed))
    assert refusals == 3


async def test_what_the_next_leader_of_a_shard_has_not_heard_is_told_to_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the one before it had taken that, and some other queue was still being told of."""
    monkeypatch.setattr(adopted, "ADOPTED_AT_ONCE_MAX", 1)
    store = await world.ready()
    made = [await make(store, name) for name in ("near", "x", "n2", "y", "n3", "z")][1::4]
    assert [one.definition.place for one in made] == [("eu", 0)] * 2
    node, before = world.eu.first, made[0].definition
    await world.home.go()
    await eventually(lambda: not store.first.line.is_open)
    for one in made:
        config = msgspec.structs.replace(PLAIN, max_attempts=3)
        await world.home.first.metadata.update_queue(TENANT, one.name, config, one.definition.version)
    adopt, is_asked, goes_on = node.metadata.adopt, asyncio.Event(), asyncio.Event()

    async def wait(definition: Any) -> bool:
        if definition.name == "z" and not goes_on.is_set():
            is_asked.set()
            await goes_on.wait()
        return await adopt(definition)

    monkeypatch.setattr(node.metadata, "adopt", wait)
    await world.home.come()
    await asyncio.wait_for(is_asked.wait(), PATIENCE_S)
    assert node.metadata.queues[TENANT, "x"].version == 2
    lines_there = [home.line for home in store.clusters["eu"].homes]
    await world.eu.go()
    await eventually(lambda: not any(line.is_open for line in lines_there))
    node.metadata.queues[TENANT, "x"] = before
    await world.eu.come()
    await eventually(lambda: all(line.is_open for line in lines_there))
    goes_on.set()
    await eventually(lambda: [one.version for one in node.metadata.queues.values()] == [2, 2])


async def test_what_a_shard_does_not_drop_for_now_goes_from_it_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing else is defined or deleted meanwhile."""
    monkeypatch.setattr(adopted, "DROP_AFTER_SECONDS", 0.05)
    store = await world.ready()
    far = await in_further(store, "far")
    assert isinstance(await publish(far, b"1"), Published)
    node = next(one for one in world.eu.nodes if one.metadata.queues)
    delete, refusals = node.metadata.delete_queue, 0

    async def refuse(*args: Any, **options: Any) -> None:
        nonlocal refusals
        if refusals < 3:
            refusals += 1
            raise Unavailable("not now", retry_after_ms=100)
        await delete(*args, **options)

    monkeypatch.setattr(node.metadata, "delete_queue", refuse)
    await world.home.first.metadata.delete_elsewhere(TENANT, "far")
    await eventually(lambda: world.eu.queues == [])
    assert refusals == 3


async def test_a_gateway_that_has_given_out_its_ids_of_data_keys_gets_more(world: World) -> None:
    """No further queue would get a key from it, however long it is connected. Whoever asks something meanwhile is
    answered."""
    store = await world.ready()
    keys, first = store.metadata.data_keys, store.first.line
    queue = await make(store, "near")
    keys.ids = keys.ids[-1:]
    last = keys.new_id()
    with pytest.raises(Unavailable):
        keys.new_id()
    made = await asyncio.gather(*(make(store, f"q{number}") for number in range(10)))
    assert isinstance(await publish(queue, b"1"), Published)
    await eventually(lambda: first.connections == 2 and bool(keys.ids))
    assert keys.new_id() > last
    assert len({one.uid for one in made}) == 10


async def in_further(store: RemoteBackends, name: str) -> RemoteQueue:
    await make(store, f"{name}-near")
    queue = await make(store, name)
    assert clusters_of(queue) == ["eu"]
    return queue


async def _names(store: RemoteBackends) -> list[tuple[str, str]]:
    while True:
        try:
            return list(store.names(TENANT))
        except LookingUp as looking:
            await looking.flight.landed()


async def test_a_further_cluster_that_is_there_before_the_home_cluster_is_no_error(world: World) -> None:
    await world.home.go()
    with capture_logs() as logged:
        starting = asyncio.ensure_future(world.gateway())
        await eventually(lambda: any(one.get("cluster") == "eu" and one["shard"] == 0 for one in logged), "it is there")
        await world.home.come()
        store = await starting
        await eventually(lambda: all(one.is_ready for one in store.clusters.values()), "both take queues")
    assert [one for one in logged if one["log_level"] == "error"] == []


@pytest.mark.usefixtures("impatient")
async def test_a_gateway_starts_with_its_home_cluster_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.remote.store.OTHERS_SECONDS_MAX", 0.2)
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    await store.close()
    await world.eu.go()
    other = await world.gateway()
    assert isinstance(await publish(other.queue(TENANT, "near"), b"1"), Published)
    with pytest.raises(ClusterAway, match="cluster 'eu'"):
        other.queue(TENANT, "far")
    assert await other.held_of([(TENANT, "far")]) == {}
    definition = other.metadata.queues[TENANT, "far"]
    assert other.pulses_of(definition) is None
    await world.eu.come()
    await eventually(lambda: other.clusters["eu"].is_met)
    assert isinstance(await publish(other.queue(TENANT, "far"), b"1"), Published)


@pytest.mark.usefixtures("impatient")
async def test_queues_of_a_cluster_that_a_gateway_does_not_name_are_said_so(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    other = await world.gateway(others=[])
    with pytest.raises(ClusterAway, match=r"not in store\.clusters of this gateway"):
        other.queue(TENANT, "far")
    assert isinstance(await publish(other.queue(TENANT, "near"), b"1"), Published)
    assert world.eu.queues == ["far"], "and it is not taken over by a shard of the home cluster"
    assert world.home.queues == ["near"]


@pytest.mark.usefixtures("impatient")
async def test_a_cluster_that_is_away_is_among_those_whose_state_is_said(world: World) -> None:
    store = await world.ready()
    await say(store, report("main", 0.9), report("eu", 0.2))
    await world.eu.go()
    await eventually(lambda: not store.clusters["eu"].is_ready)
    with pytest.raises(Unavailable, match="main is hot, 90% used, eu is unreachable"):
        await make(store, "q")


@pytest.mark.usefixtures("impatient")
async def test_what_a_tenant_holds_is_known_while_it_publishes_and_while_a_cluster_is_away(world: World) -> None:
    """Else its quota of stored bytes stops nobody."""
    store = await world.ready()
    await store.metadata.put_tenant(TENANT, 0, Quotas(stored_bytes=10_000))
    await make(store, "near")
    far, quotas = await make(store, "far"), StoredQuotas(cast(Any, store))
    await quotas.look()
    assert quotas.full == {}
    assert isinstance(await publish(far, b"x" * 10_000), Published)
    await quotas.look()
    assert quotas.full.keys() == {TENANT}
    await world.eu.go()
    await eventually(lambda: far.home.line.is_away)
    await store.metadata.put_tenant("another", 0, Quotas(stored_bytes=10_000))  # all are looked at
    await quotas.look()
    assert quotas.full.keys() == {TENANT}
    await store.delete_queue(TENANT, "far")
    await quotas.look()
    assert quotas.full == {}


@pytest.mark.usefixtures("impatient")
async def test_queues_of_a_cluster_that_never_comes_back_can_be_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend_store.remote.store.OTHERS_SECONDS_MAX", 0.2)
    store = await world.ready()
    names = "near", "far", "n2", "gone"
    assert clusters_of(*[await make(store, name) for name in names]) == ["", "eu", "", "eu"]
    for name in ("far", "gone"):
        assert isinstance(await publish(store.queue(TENANT, name), b"old"), Published)
    await store.close()
    await world.eu.go()
    other = await world.gateway()
    with pytest.raises(ClusterAway):
        other.queue(TENANT, "far")
    assert await other.delete_queue(TENANT, "far") is None
    unaware = await world.gateway(others=[])
    assert await unaware.delete_queue(TENANT, "gone") is None
    again = await make(unaware, "gone")
    assert clusters_of(again) == [""]
    assert isinstance(await publish(again, b"new"), Published)
    await world.eu.come()
    await eventually(lambda: world.eu.queues == [], "the shards drop what was deleted meanwhile")
    await eventually(lambda: other.clusters["eu"].is_ready)
    assert await consume(other.queue(TENANT, "gone"), 1) == [b"new"]


async def test_ages_are_by_the_clock_that_they_are_measured_with(world: World) -> None:
    hour_ms = 3_600_000
    for node in world.eu.nodes:
        node.steady_ms = lambda: wall_clock_ms() - hour_ms
    store = await world.ready()
    await make(store, "near")
    far = await make(store, "far")
    assert isinstance(await publish(far, b"1"), Published)

    def age_ms() -> int | None:
        pulses = store.pulses_of(far.definition)
        since = pulses.take().oldest_since_ms if pulses is not None else 0
        return store.steady_ms() - since if since else None

    await eventually(lambda: age_ms() is not None)
    found = age_ms()
    assert found is not None and -1_000 < found < hour_ms / 2


# ------------------------------------------------------------------------------------------------- whose cluster it is


async def test_a_cluster_with_queues_of_its_own_gets_none_and_loses_none(world: World) -> None:
    theirs = await world.gateway(world.eu.at, [])
    own = await make(theirs, "a"), await make(theirs, "b")
    assert {queue.definition.shard for queue in own} == {0, 1}
    await theirs.delete_queue(TENANT, next(queue.name for queue in own if queue.definition.shard == 1))
    kept = world.eu.queues
    store = await world.gateway()
    await eventually(lambda: store.clusters["eu"].is_met)
    for shard in store.clusters["eu"].homes[1:]:
        with pytest.raises(Unavailable, match="has not confirmed yet"):
            await shard.adopted.tell([])
    with pytest.raises(Conflict, match="defined here"):
        await store.clusters["eu"].first.adopted.tell([])
    assert clusters_of(*[await make(store, f"q{number}") for number in range(3)]) == [""] * 3
    with pytest.raises(Conflict, match="defined here"):
        await store.clusters["eu"].first.adopted.drop([1])
    assert world.eu.queues == kept and len(kept) == 1


async def test_a_cluster_belongs_to_one_home_cluster(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    another = Shards("another")
    await another.open()
    try:
        theirs = await world.gateway(another.at, [world.eu.at])
        await eventually(lambda: theirs.clusters["eu"].is_met)
        with pytest.raises(Conflict, match="belong to metadata"):
            await theirs.clusters["eu"].first.adopted.tell([])
        assert clusters_of(*[await make(theirs, f"q{number}") for number in range(3)]) == [""] * 3
        assert world.eu.queues == ["far"]
        await theirs.close()
    finally:
        await another.close()


async def test_a_cluster_of_others_is_not_asked_for_numbers(world: World) -> None:
    """Its queues have the numbers and the names of ours."""
    theirs = await world.gateway(world.eu.at, [])
    named = await make(theirs, "q"), await make(theirs, "r")
    for queue in named:
        assert isinstance(await publish(queue, b"1"), Published)
    store = await world.gateway()
    await eventually(lambda: store.clusters["eu"].is_met)
    ours = await make(store, "q"), await make(store, "r")
    assert {one.uid for one in ours} == {one.uid for one in named}
    await eventually(lambda: all(store.pulses_of(one.definition) is not None for one in ours))
    assert [store.pulses_of(one.definition).take().ready for one in ours] == [0, 0]  # type: ignore[union-attr]
    with pytest.raises(Unavailable, match="cluster 'eu'"):
        await store.ledger.totals(first_day=0, last_day=100_000)


async def test_what_was_used_is_not_told_without_a_cluster_that_has_queues(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    await eventually(lambda: all(home.is_ours for home in store.homes))
    assert await store.ledger.totals(first_day=0, last_day=100_000) == []
    other = await world.gateway(others=[])
    with pytest.raises(Unavailable, match=r"cluster 'eu', which is not in store\.clusters of this gateway"):
        await other.ledger.totals(first_day=0, last_day=100_000)


async def test_a_further_cluster_taken_for_home_refuses_definitions(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    mistaken = await world.gateway(world.eu.at, [])
    with pytest.raises(Conflict, match="defined by another one"):
        await make(mistaken, "new")
    with pytest.raises(Conflict, match="defined by another one"):
        await mistaken.delete_queue(TENANT, "far")
    assert world.eu.queues == ["far"]


async def test_backends_that_do_not_know_further_clusters_get_no_queues(world: World) -> None:
    world.eu.first.metadata.identity = ""
    store = await world.gateway()
    await eventually(lambda: store.clusters["eu"].is_met)
    with pytest.raises(Unavailable, match="upgrade them first"):
        await store.clusters["eu"].first.adopted.tell([])
    assert clusters_of(*[await make(store, f"q{number}") for number in range(3)]) == [""] * 3


# --------------------------------------------------------------------------------------------- which cluster has a name


async def refused(store: RemoteBackends, name: str, why: str) -> None:
    """Publishes to a queue until it is said why its cluster takes nothing."""

    async def is_said() -> bool:
        try:
            done = await publish(store.queue(TENANT, name), b"astray")
        except ClusterAway as error:
            done = error
        assert isinstance(done, Unavailable), done
        return why in done.detail

    await eventually(is_said)


@pytest.fixture
async def us() -> AsyncIterator[Shards]:
    made = Shards("us")
    await made.open()
    yield made
    await made.close()


async def test_clusters_whose_names_are_exchanged_get_nothing(world: World, us: Shards) -> None:
    """Else what is published by such a gateway lies where nobody looks for it."""
    right = await world.gateway(others=[world.eu.at, us.at])
    await eventually(lambda: all(one.is_ready for one in right.clusters.values()))
    made = [await make(right, f"q{number}") for number in range(3)]
    assert sorted(clusters_of(*made)) == ["", "eu", "us"]
    before = world.eu.queues, us.queues
    wrong = await world.gateway(others=[us.at._replace(name="eu"), world.eu.at._replace(name="us")])
    far = next(one for one in made if one.definition.cluster == "eu")
    await refused(wrong, far.name, "cluster 'eu' is not the cluster these backends know")
    assert clusters_of(*[await make(wrong, f"w{number}") for number in range(3)]) == [""] * 3
    assert (world.eu.queues, us.queues) == before


async def test_a_name_that_two_gateways_give_to_different_backends_is_that_of_the_first(
    world: World, us: Shards
) -> None:
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    wrong = await world.gateway(others=[us.at._replace(name="eu")])
    await refused(wrong, "far", "correct the addresses")
    assert us.queues == [] and us.first.metadata.adopted_from is None, "and it belongs to nobody"
    assert isinstance(await publish(store.queue(TENANT, "far"), b"1"), Published)
    assert await consume(store.queue(TENANT, "far"), 1) == [b"1"]


async def test_a_cluster_keeps_its_name(world: World) -> None:
    store = await world.ready()
    await make(store, "near")
    await make(store, "far")
    renamed = await world.gateway(others=[world.eu.at._replace(name="europe")])
    cluster = renamed.clusters["europe"]
    await eventually(lambda: "cluster 'eu', not 'europe'" in cluster.why_not)
    assert clusters_of(*[await make(renamed, f"q{number}") for number in range(3)]) == [""] * 3
    with pytest.raises(ClusterAway, match=r"not in store\.clusters"):
        renamed.queue(TENANT, "far")
    assert world.eu.queues == ["far"]


async def test_a_cluster_that_comes_back_empty_is_not_taken_for_the_one_that_was_there(world: World) -> None:
    """It would take the queues over, and nobody would hear that their messages are not there."""
    store = await world.ready()
    made = [await make(store, name) for name in ("near", "gone", "n2", "far")]
    assert [queue.definition.place for queue in made[1::2]] == [("eu", 0), ("eu", 1)]
    assert isinstance(await publish(made[-1], b"1"), Published)
    await world.eu.go()
    lines_there = [home.line for home in store.clusters["eu"].homes]
    await eventually(lambda: not any(line.is_open for line in lines_there))
    before, world.eu.nodes = world.eu.nodes, [Node(MemoryEngine(), directory=None) for _ in range(2)]
    for node in world.eu.nodes:
        await node.start()
    await world.eu.come()
    await eventually(lambda: bool(store.clusters["eu"].why_not) and all(line.is_open for line in lines_there))
    await refused(store, "far", "correct the addresses, or give a rebuilt cluster")
    await store.delete_queue(TENANT, "gone")
    assert world.eu.queues == []
    assert [node.metadata.adopted_from for node in world.eu.nodes] == [None, None], "it belongs to nobody"
    await world.eu.go()
    for node in world.eu.nodes:
        await node.close()
    world.eu.nodes = before
    await world.eu.come()
    await eventually(lambda: store.clusters["eu"].is_ready)
    assert await consume(store.queue(TENANT, "far"), 1) == [b"1"]
