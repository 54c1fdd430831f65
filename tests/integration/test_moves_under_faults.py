"""Queues move from cluster to cluster and back, are split over several and merged, over and over, while clusters and
gateways go and come: by a seed.

Nodes of this process over loopback: leaders of shards are not elected here, they go and come back as they were. A
producer sends a key's messages one after the other, again until they are confirmed; consumers come and go with their
gateways.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import blake2b
from typing import Any

import msgspec
import pytest

from backend_store.core.leases.leases import Lease
from backend_store.core.log.chunk import KIND_JSON, Columns
from backend_store.model import Original, Published, PushqError, QueueConfig
from backend_store.remote.cluster import ClusterAt
from backend_store.remote.definitions import moves as moving
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.queues.placed import PlacedQueue
from backend_store.remote.store import RemoteBackends
from push.delivery.lookup_retry import LookingUp
from tests.support.keyed_history import KeyedHistory, Name, Place
from tests.support.lanes import Lanes
from tests.support.patience import eventually
from tests.support.seeds import worlds
from tests.unit.backend_store.remote.test_clusters import TENANT, Shards

pytestmark = pytest.mark.anyio

QUEUE = "q"
KEYS = 6
MOVES = 4
AHEAD_MAX = 200
AGAIN_SHARE, AGAIN_OF, AGAIN_S_MAX = 0.1, 20, 0.5
"""How often a message is sent that was confirmed before: one of the last, and before its place may be forgotten."""
FORGET_MS = 3_000
GATEWAYS = 2
ANSWER_S_MAX = 15.0
VISIBILITY_MS = 3_000
CONFIG = QueueConfig(ordering="strict", dedupe="id", dedupe_window_ms=60_000, encrypted=False, dead_letter_queue=None)


class Cluster:
    """One that can be away: its listeners, or those of its hosts, are closed and opened again."""

    def __init__(
        self, name: str, at: ClusterAt, go: Callable[[], Awaitable[None]], come: Callable[[], Awaitable[None]]
    ):
        self.name, self.at, self.go, self.come = name, at, go, come


class Consumer:
    """Takes messages at one gateway and acks them, some of them late."""

    gateway = ""

    def __init__(self, world: World, queue: PlacedQueue, rng: random.Random) -> None:
        self._world, self._queue, self._rng = world, queue, rng
        self.is_over = False
        queue.on_ready(self._deal, lambda: {VISIBILITY_MS: 4})
        queue.wanted_changed()

    def _deal(self) -> None:
        while not self.is_over and (lease := self._queue.take(4, self, VISIBILITY_MS)) is not None:
            self._world.work(self._handle(lease))

    async def _handle(self, lease: Lease) -> None:
        assert lease.chunk is not None
        numbers = [n for n in range(lease.bits.bit_length()) if lease.bits >> n & 1]
        names = [msgspec.json.decode(lease.chunk.messages.bodies[n], type=Name) for n in numbers]
        receipts = [f"{lease.token}{n:02x}" for n in numbers]
        history = self._world.history
        for name in names:
            history.deliver(name)
        await asyncio.sleep(self._rng.choice((0, 0, 0.01, 0.05)))
        history.settle(names)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.settle(receipts, lambda result: None if done.done() else done.set_result(result))
        with suppress(TimeoutError):
            verdicts = await asyncio.wait_for(done, ANSWER_S_MAX)
            if not isinstance(verdicts, PushqError):
                history.ack([name for name, verdict in zip(names, verdicts, strict=True) if verdict.ok])

    def released(self, count: int) -> None:
        self._queue.wanted_changed()

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None: ...
    def sendable(self) -> None: ...


class World:
    def __init__(self, opened: AsyncExitStack, seed: int, *, splits: bool) -> None:
        self.opened = opened
        self.splits = splits
        self.rng = random.Random(seed)
        self.history = KeyedHistory()
        self.clusters: list[Cluster] = []
        self.gateways: list[RemoteBackends] = []
        self.consumers: list[Consumer] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_over = False
        self.moves = 0

    def work(self, what: Any) -> None:
        task = asyncio.ensure_future(what)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def gateway(self) -> RemoteBackends:
        home, *others = [one.at for one in self.clusters]
        store = RemoteBackends(home.directory, None, LookingUp, addresses=home.addresses, name=home.name, others=others)
        self.opened.push_async_callback(store.close)
        await store.open()
        return store

    def queue_at(self, store: RemoteBackends) -> PlacedQueue:
        queue = store.queue(TENANT, QUEUE)
        assert isinstance(queue, PlacedQueue)
        return queue

    # -------------------------------------------------------------------------------------------------- the clients

    async def produce(self, key: str) -> None:
        latest: deque[tuple[float, Name]] = deque(maxlen=AGAIN_OF)
        while not self.is_over:
            name = self.history.next(key)
            while (place := await self.sent(name)) is None:  # noqa: ASYNC110 - it is sent again
                await asyncio.sleep(0.02)
            self.history.confirm(name, place)
            latest.append((asyncio.get_running_loop().time(), name))
            if self.rng.random() < AGAIN_SHARE:  # one of before is known wherever its key went meanwhile
                await self.repeat(self.rng.choice(latest))
            await asyncio.sleep(self.rng.choice((0, 0, 0.002, 0.02)))
            while len(self.history.places) - len(self.history.settling) > AHEAD_MAX and not self.is_over:  # noqa: ASYNC110 - consumers move it
                await asyncio.sleep(0.02)

    async def repeat(self, known: tuple[float, Name]) -> None:
        confirmed_at, name = known
        while asyncio.get_running_loop().time() < confirmed_at + AGAIN_S_MAX:
            if (place := await self.sent(name)) is not None:
                self.history.confirm(name, place)
                return
            await asyncio.sleep(0.02)

    async def sent(self, name: Name) -> Place | None:
        """Where it lies; None where it is to be sent again."""
        try:
            queue = self.queue_at(self.rng.choice(self.gateways))
        except PushqError:
            return None
        columns = Columns(
            KIND_JSON,
            [msgspec.json.encode(name)],
            {"key": [name.key]},
            hashes=[blake2b(str(name).encode(), digest_size=16).digest()],
        )
        done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
        queue.publish(
            list(queue.blocks(columns, None).blocks), lambda result: None if done.done() else done.set_result(result)
        )
        try:
            result = await asyncio.wait_for(done, ANSWER_S_MAX)
        except TimeoutError:
            raise AssertionError(f"{name} was not answered") from None
        if isinstance(result, PushqError):
            assert result.code in ("unavailable", "overloaded", "outcome-unknown"), result
            return None
        other = (result.others or {}).get(0)
        if isinstance(other, PushqError):
            assert other.code in ("unavailable", "overloaded", "outcome-unknown"), other
            return None
        if isinstance(other, Original):
            return result.partition if other.partition is None else other.partition, other.offset
        return result.places[0] if result.places else (result.partition, result.base)

    # --------------------------------------------------------------------------------------------------- the faults

    async def move(self) -> None:
        store = self.rng.choice(self.gateways)
        lies_in = store.metadata.find(TENANT, QUEUE).cluster
        names = [one.name for one in store.clusters.values()]
        over = self.rng.sample(names, self.rng.randrange(1, 4)) if self.splits else []
        to = self.rng.choice([one.name for one in store.clusters.values() if one.key != lies_in])
        with suppress(PushqError):  # it is under way, or has something there yet, or somebody is away
            if over:
                await store.moves.spread(TENANT, QUEUE, over)
            else:
                await store.moves.begin(TENANT, QUEUE, to)
            self.moves += 1
        if self.rng.random() < 0.15:
            with suppress(PushqError):
                await store.moves.give_up(TENANT, QUEUE)

    async def blink(self) -> None:
        """A cluster is away for a moment."""
        cluster = self.rng.choice(self.clusters)
        await cluster.go()
        await asyncio.sleep(self.rng.uniform(0, 0.3))
        await cluster.come()

    async def change_gateway(self) -> None:
        """One ends, and another one takes its place."""
        number = self.rng.randrange(len(self.gateways))
        before, consumer = self.gateways[number], self.consumers[number]
        self.gateways[number] = await self.gateway()
        self.consumers[number] = Consumer(self, self.queue_at(self.gateways[number]), self.rng)
        consumer.is_over = True
        await before.close()

    async def change_config(self) -> None:
        store = self.rng.choice(self.gateways)
        known = store.metadata.find(TENANT, QUEUE)
        config = msgspec.structs.replace(known.config, max_attempts=self.rng.randrange(50, 99))
        with suppress(PushqError):
            await store.update_queue(TENANT, QUEUE, config, known.version)

    async def trouble(self) -> None:
        while self.moves < MOVES:
            what = self.rng.choices(
                (self.move, self.blink, self.change_gateway, self.change_config), weights=(6, 2, 1, 1)
            )[0]
            await what()
            await asyncio.sleep(self.rng.uniform(0, 0.5))

    def left(self) -> str:
        missing = sorted(self.history.places.keys() - self.history.settling)
        store = self.gateways[0]
        known = store.metadata.find(TENANT, QUEUE)
        first = [f"{name} at {self.history.places[name]}" for name in missing if name.number == missing[0].number]
        return (
            f"{len(self.history.places)} confirmed, {self.moves} moves; not delivered: {', '.join(first[:10])}; "
            f"{known}; under way: {store.moves.under_way()}"
        )


@asynccontextmanager
async def opened_world(seed: int, *, with_hosts: bool, splits: bool) -> AsyncIterator[World]:
    async with AsyncExitStack() as opened:
        world = World(opened, seed, splits=splits)
        for name, shards in (("main", 2), ("eu", 1), ("us", 2)):
            made = Shards(name, shards)
            await made.open()
            opened.push_async_callback(made.close)
            world.clusters.append(Cluster(name, made.at, made.go, made.come))
        if with_hosts:
            hosts = await opened.enter_async_context(Lanes())
            addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
            at = ClusterAt("hosts", FixedDirectory(addresses), addresses)
            world.clusters.append(Cluster("hosts", at, nothing, nothing))
        for _ in range(GATEWAYS):
            world.gateways.append(await world.gateway())
        first = world.gateways[0]
        await eventually(lambda: all(one.is_ready for one in first.clusters.values()))
        await first.create_queue(TENANT, QUEUE, CONFIG)
        await eventually(lambda: all((TENANT, QUEUE) in store.metadata.queues for store in world.gateways))
        world.consumers += [Consumer(world, world.queue_at(store), world.rng) for store in world.gateways]
        yield world
        for task in list(world.tasks):
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)


async def nothing() -> None:
    """Its hosts stay."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are forgotten as soon as nothing is left there: repeats come within seconds, and those are waited for."""
    monkeypatch.setattr(moving, "MOVE_FORGET_MS", FORGET_MS - CONFIG.dedupe_window_ms)
    monkeypatch.setattr(moving, "MOVE_LOOK_SECONDS", 0.1)


@pytest.mark.parametrize("with_hosts", [False, True], ids=["leaders", "hosts"])
@pytest.mark.parametrize("splits", [False, True], ids=["moves", "splits"])
@pytest.mark.parametrize("seed", worlds(2))
async def test_moves_lose_double_and_reorder_nothing(seed: int, splits: bool, with_hosts: bool) -> None:
    async with opened_world(seed, with_hosts=with_hosts, splits=splits) as world:
        producers = [asyncio.ensure_future(world.produce(f"k{number}")) for number in range(KEYS)]
        trouble = asyncio.ensure_future(world.trouble())
        history = world.history
        await eventually(trouble.done, world.left, beside=[*producers, trouble])
        world.is_over = True
        await eventually(lambda: all(one.done() for one in producers), world.left, beside=producers)
        await eventually(lambda: history.places.keys() <= history.settling, world.left, beside=producers)
        assert history.violations(()) == []
        first = world.gateways[0]
        await eventually(
            lambda: first.moves.under_way() == [] and not first.metadata.find(TENANT, QUEUE).goal,
            lambda: f"it ends: {first.moves.under_way()}",
        )
        places = list(history.places.values())
        assert len(set(places)) == len(places), "each lies somewhere else"
