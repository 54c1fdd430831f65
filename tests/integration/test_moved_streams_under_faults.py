"""Streams move from cluster to cluster while clusters and gateways go and come, and are read without a group and by
two: by a seed. Nodes of this process over loopback, as in `test_moves_under_faults`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from backend_store.client import Chunk, Gap
from backend_store.core.leases.leases import Lease
from backend_store.core.log.chunk import KIND_JSON, Columns
from backend_store.model import Published, PushqError, QueueConfig
from backend_store.node.views.group import Mode
from backend_store.remote.cluster import ClusterAt
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.queues.placed_streams import PlacedStream
from backend_store.remote.store import RemoteBackends
from push.delivery.fanout import Fanout, cursor_after
from push.delivery.lookup_retry import LookingUp, found
from push.delivery.stream_reader import Others
from push.encoding.deliveries import visible
from push.session.subscriptions import StreamSubscription
from tests.integration.test_moves_under_faults import AHEAD_MAX, ANSWER_S_MAX, VISIBILITY_MS, Cluster, nothing
from tests.support.keyed_history import KeyedHistory, Name
from tests.support.lanes import Lanes
from tests.support.patience import eventually
from tests.support.seeds import worlds
from tests.unit.backend_store.remote.test_clusters import TENANT, Shards

pytestmark = pytest.mark.anyio

STREAM = "s"
KEYS = 5
GATEWAYS = 2
MODES: tuple[Mode, ...] = ("offsets", "leases")
CONFIG = QueueConfig(kind="stream", partitions=2, dedupe="id", encrypted=False, retention_ms=None)


class Consumer:
    """Of a group at one gateway. It opens the group, and acks what comes, some of it late."""

    gateway = ""

    def __init__(self, world: World, stream: PlacedStream, mode: Mode) -> None:
        self._world, self._mode, self._rng = world, mode, world.rng
        self._group: Any = None
        self.is_over = False
        stream.open_group(mode, None, self._opened)
        self._stream = stream

    def _opened(self, group: Any) -> None:
        if self.is_over:
            return
        if isinstance(group, PushqError):
            asyncio.get_running_loop().call_later(0.1, self._stream.open_group, self._mode, None, self._opened)
            return
        self._group = group
        group.on_ready(self._deal, self._wanted)
        group.consumers += 1
        group.wanted_changed()

    def _wanted(self) -> dict[int, int]:
        return {VISIBILITY_MS: 0 if self.is_over else 4}

    def _deal(self) -> None:
        while not self.is_over and (lease := self._group.take(4, self, VISIBILITY_MS)) is not None:
            self._world.work(self._handle(lease))

    async def _handle(self, lease: Lease) -> None:
        assert lease.chunk is not None
        numbers = [n for n in range(lease.bits.bit_length()) if lease.bits >> n & 1]
        names = [msgspec.json.decode(lease.chunk.messages.bodies[n], type=Name) for n in numbers]
        history = self._world.groups[self._mode]
        for name in names:
            history.deliver(name)
        await asyncio.sleep(self._rng.choice((0, 0, 0.01, 0.05)))
        history.settle(names)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        receipts = [f"{lease.token}{n:02x}" for n in numbers]
        self._group.settle(receipts, lambda result: None if done.done() else done.set_result(result))
        with suppress(TimeoutError):
            verdicts = await asyncio.wait_for(done, ANSWER_S_MAX)
            if not isinstance(verdicts, PushqError):
                history.ack([name for name, verdict in zip(names, verdicts, strict=True) if verdict.ok])

    def released(self, count: int) -> None:
        self._group.wanted_changed()

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None: ...
    def sendable(self) -> None: ...


class Reader:
    """Without a group, at one gateway and then at another one, from its cursor on."""

    def __init__(self, world: World) -> None:
        self.writable = True
        self.history = world.history_of(is_ordered=True)
        self._world = world
        self._cursor = ""
        self._stream: Any = None

    async def go_on(self, stream: Any) -> None:
        wanted: Any = {"cursor": self._cursor} if self._cursor else "earliest"
        while True:
            try:
                start = await found(lambda: stream.parts.start(wanted))
                break
            except PushqError:
                await asyncio.sleep(0.1)
        assert start.outcome == "complete", start
        self._stream = stream
        self._sub = StreamSubscription(self, 1, stream, start=start, credit=None, key="json")
        stream.consumers += 1
        fanout_of(stream).start(self._sub, self)

    async def stumble(self) -> None:
        """Its socket takes nothing for a moment."""
        self.writable = False
        await asyncio.sleep(self._world.rng.uniform(0, 0.2))
        self.writable = True
        fanout_of(self._stream).start(self._sub, self)

    def stop(self) -> None:
        fanout_of(self._stream).stop(self._sub)
        self._stream.consumers -= 1

    def write(self, data: bytes) -> None:
        names, self._cursor = msgspec.json.decode(data, type=tuple[list[Name], str])
        for name in names:
            self.history.deliver(name)
        self.history.settle(names)
        self.history.ack(names)

    def tell_gap(self, number: int, gap: Gap) -> None:
        self.history.seen.append(f"a gap was told: {gap}")

    def tell_reset(self, number: int, cursor: str) -> None:
        self.history.seen.append("a reset was told")

    def delivered(self, *_: Any) -> None: ...
    def flush_soon(self) -> None: ...
    def tell_lost(self, number: int, receipts: list[str]) -> None: ...


def framed(chunk: Chunk, start: int, stop: int, number: int, others: Others) -> bytes:
    names = [msgspec.json.decode(chunk.messages.bodies[at]) for at in visible(chunk, start, stop)]
    return msgspec.json.encode((names, cursor_after(chunk, stop, others)))


def fanout_of(stream: Any) -> Fanout:
    if "fanout" not in stream.extras:
        stream.extras["fanout"] = Fanout(stream, asyncio.get_running_loop(), {"json": framed}, lambda count: None)
    made: Fanout = stream.extras["fanout"]
    return made


class World:
    def __init__(self, opened: AsyncExitStack, seed: int) -> None:
        self.opened = opened
        self.rng = random.Random(seed)
        self.history = KeyedHistory()
        self.groups = {mode: self.history_of(is_ordered=mode == "offsets") for mode in MODES}
        self.clusters: list[Cluster] = []
        self.gateways: list[RemoteBackends] = []
        self.consumers: list[list[Consumer]] = []
        self.reader = Reader(self)
        self.reads_at = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_over = False

    def history_of(self, *, is_ordered: bool) -> KeyedHistory:
        return KeyedHistory(is_ordered=is_ordered, sent=self.history.sent, places=self.history.places)

    @property
    def histories(self) -> list[KeyedHistory]:
        return [self.reader.history, *self.groups.values()]

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

    async def stream_at(self, store: RemoteBackends) -> PlacedStream:
        while True:
            with suppress(PushqError):
                stream = store.queue(TENANT, STREAM)
                assert isinstance(stream, PlacedStream)
                return stream
            await asyncio.sleep(0.05)

    def consume_at(self, stream: PlacedStream) -> list[Consumer]:
        return [Consumer(self, stream, mode) for mode in MODES]

    # -------------------------------------------------------------------------------------------------- the clients

    async def produce(self, key: str) -> None:
        while not self.is_over:
            name = self.history.next(key)
            while (place := await self._sent(name)) is None:  # noqa: ASYNC110 - it is sent again
                await asyncio.sleep(0.02)
            self.history.confirm(name, place)
            await asyncio.sleep(self.rng.uniform(0, 0.02))
            while self._are_behind:  # noqa: ASYNC110 - readers move it
                await asyncio.sleep(0.02)

    @property
    def _are_behind(self) -> bool:
        return len(self.history.places) - min(len(one.settling) for one in self.histories) > AHEAD_MAX

    async def _sent(self, name: Name) -> tuple[int, int] | None:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            stream: Any = self.rng.choice(self.gateways).queue(TENANT, STREAM)
            columns = Columns(KIND_JSON, [msgspec.json.encode(name)], {"key": [name.key]}, hashes=[_id(name)])
            blocks = list(stream.blocks(columns, None).blocks)
            stream.publish(blocks, lambda result: None if done.done() else done.set_result(result))
            answer = await asyncio.wait_for(done, ANSWER_S_MAX)
        except (PushqError, TimeoutError):
            return None
        if not isinstance(answer, Published):
            return None
        other = (answer.others or {}).get(0)
        if isinstance(other, PushqError):
            return None
        if other is not None:
            return other.partition if other.partition is not None else answer.partition, int(other.offset)
        return answer.partition, int(answer.base)

    # --------------------------------------------------------------------------------------------------- the trouble

    async def move(self, to: str) -> None:
        while True:
            with suppress(PushqError):
                await self.rng.choice(self.gateways).moves.begin(TENANT, STREAM, to)
                return
            await asyncio.sleep(0.05)

    async def blink(self) -> None:
        """A cluster is away for a moment."""
        cluster = self.rng.choice(self.clusters)
        await cluster.go()
        await asyncio.sleep(self.rng.uniform(0, 0.3))
        await cluster.come()

    async def change_gateway(self) -> None:
        """One ends, and another one takes its place."""
        number = self.rng.randrange(len(self.gateways))
        before = self.gateways[number]
        self.gateways[number] = await self.gateway()
        stream = await self.stream_at(self.gateways[number])
        for consumer in self.consumers[number]:
            consumer.is_over = True
        self.consumers[number] = self.consume_at(stream)
        if number == self.reads_at:
            self.reader.stop()
            self.reads_at = self.rng.randrange(len(self.gateways))
            await self.reader.go_on(await self.stream_at(self.gateways[self.reads_at]))
        await before.close()

    async def read_elsewhere(self) -> None:
        self.reader.stop()
        self.reads_at = self.rng.randrange(len(self.gateways))
        await self.reader.go_on(await self.stream_at(self.gateways[self.reads_at]))

    async def trouble(self) -> None:
        stumble = self.reader.stumble
        ways: list[Callable[[], Any]] = [self.blink, self.change_gateway, self.read_elsewhere, stumble, stumble]
        names = [one.name for one in self.clusters]
        definition = self.gateways[0].metadata.find(TENANT, STREAM)
        at = next(one.name for one in self.gateways[0].clusters.values() if one.key == definition.cluster)
        others = [name for name in names if name != at]
        self.rng.shuffle(others)
        for to in others:
            for _ in range(self.rng.randrange(3)):
                await self.rng.choice(ways)()
            await self.move(to)
            await self.rng.choice(ways)()
            await eventually(lambda to=to: self._lies_in(to), self.left)  # type: ignore[misc]
            await asyncio.sleep(self.rng.uniform(0, 0.5))

    def _lies_in(self, name: str) -> bool:
        store = self.gateways[0]
        key = next(one.key for one in store.clusters.values() if one.name == name)
        return store.metadata.find(TENANT, STREAM).cluster == key

    def left(self) -> str:
        lacks = [sorted(self.history.places.keys() - one.settling)[:5] for one in self.histories]
        store = self.gateways[0]
        return f"{len(self.history.places)} confirmed; lacking: {lacks}; {store.metadata.find(TENANT, STREAM)}"

    def have_all(self) -> bool:
        return all(self.history.places.keys() <= one.settling for one in self.histories)


def _id(name: Name) -> bytes:
    return str(name).encode().ljust(16, b"\0")


@asynccontextmanager
async def opened_world(seed: int, *, with_hosts: bool) -> AsyncIterator[World]:
    async with AsyncExitStack() as opened:
        world = World(opened, seed)
        for name, shards in (("main", 2), ("eu", 1)):
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
        await first.create_queue(TENANT, STREAM, CONFIG)
        await eventually(lambda: all((TENANT, STREAM) in store.metadata.queues for store in world.gateways))
        stream = await world.stream_at(first)
        for mode in MODES:
            made_group: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            stream.put_group(mode, "earliest", mode, made_group.set_result)
            assert not isinstance(await made_group, PushqError)
        world.consumers += [world.consume_at(await world.stream_at(store)) for store in world.gateways]
        await world.reader.go_on(stream)
        yield world
        for task in list(world.tasks):
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)


@pytest.mark.parametrize("with_hosts", [False, True], ids=["leaders", "hosts"])
@pytest.mark.parametrize("seed", worlds(1))
async def test_moves_of_streams_lose_double_and_reorder_nothing(seed: int, with_hosts: bool) -> None:
    async with opened_world(seed, with_hosts=with_hosts) as world:
        producers = [asyncio.ensure_future(world.produce(f"k{number}")) for number in range(KEYS)]
        trouble = asyncio.ensure_future(world.trouble())
        await eventually(trouble.done, world.left, beside=[*producers, trouble])
        world.is_over = True
        await eventually(lambda: all(one.done() for one in producers), world.left, beside=producers)
        await eventually(world.have_all, world.left)
        assert [each for one in (world.history, *world.histories) for each in one.seen] == []
