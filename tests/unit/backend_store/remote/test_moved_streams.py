"""Streams that move between clusters while they are read: nodes of this process, over loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
import pytest

from backend_store.client import Chunk, Gap, decode_cursor
from backend_store.client.filters import PeekFilter
from backend_store.model import Conflict, InvalidRequest, NotFound, Original, Published, PushqError, Unavailable
from backend_store.node.node import Node, wall_clock_ms
from backend_store.remote import store as stores
from backend_store.remote.cluster import ClusterAt
from backend_store.remote.definitions import adopted
from backend_store.remote.definitions import moves as moving
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.queues import joined, placed_groups, tails
from backend_store.remote.queues.joined import JoinedParts
from backend_store.remote.queues.placed_groups import PlacedGroup
from backend_store.remote.queues.placed_streams import PlacedStream
from backend_store.remote.queues.streams import RemoteStream
from backend_store.remote.queues.tails import RemoteParts
from backend_store.remote.store import RemoteBackends
from backend_store.service.groups import CarryGroup, DeleteGroup, OpenGroup, PutGroup
from backend_store.storage.memory import MemoryEngine
from push.delivery.fanout import Fanout, cursor_after
from push.delivery.lookup_retry import found
from push.delivery.stream_reader import Others
from push.encoding.deliveries import visible
from push.session.subscriptions import StreamSubscription
from tests.support.lanes import Lanes, Taker
from tests.support.patience import PATIENCE_S, eventually
from tests.unit.backend_store.remote.test_clusters import TENANT, Shards, World, make
from tests.unit.backend_store.remote.test_moves import definition, publish, store_key

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as opened:
        made = World(opened)
        await made.open()
        yield made


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are forgotten when nothing is left there."""
    monkeypatch.setattr(moving, "MOVE_FORGET_MS", -1_000_000_000)
    monkeypatch.setattr(moving, "MOVE_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(moving, "MOVE_REMEMBER_SECONDS", 0.05)
    monkeypatch.setattr(adopted, "DROP_AFTER_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_groups, "GROUP_LOOK_SECONDS", 0.02)


async def stream(store: RemoteBackends, name: str = "s", **settings: Any) -> PlacedStream:
    queue = await make(store, name, kind="stream", **{"retention_ms": None, **settings})
    assert isinstance(queue, PlacedStream)
    return queue


async def moved(store: RemoteBackends, name: str, to: str) -> None:
    """Returns when publishes go there."""
    await store.moves.begin(TENANT, name, to)
    await eventually(lambda: definition(store, name).cluster == store_key(store, to), "it has arrived")


async def put(queue: PlacedStream, *bodies: int, key: str | None = None) -> None:
    answer = await publish(queue, *(b"%d" % body for body in bodies), key=key)
    assert isinstance(answer, Published), answer


class Reader:
    """Whoever reads without a group, from `wanted` on."""

    def __init__(self, queue: PlacedStream):
        self.writable = True
        self.told: list[Any] = []
        """Bodies, and what it was told of gaps and resets."""
        self.cursor = ""
        self._queue = queue

    async def begin(self, wanted: Any, *, credit: int | None = None) -> Reader:
        queue: Any = self._queue
        start = await found(lambda: queue.parts.start(wanted))
        self.cursor, self.outcome = start.cursor, start.outcome
        self.told += start.gaps
        self.sub = StreamSubscription(self, 1, queue, start=start, credit=credit, key="json")
        queue.consumers += 1
        fanout_of(queue).start(self.sub, self)
        return self

    def stop(self) -> None:
        fanout_of(self._queue).stop(self.sub)
        self._queue.consumers -= 1

    def has(self, count: int) -> bool:
        return len(self.told) >= count

    def has_told(self, told: list[Any]) -> bool:
        return self.told == told

    @property
    def bodies(self) -> list[int]:
        return [one for one in self.told if isinstance(one, int)]

    def write(self, data: bytes) -> None:
        bodies, self.cursor = json.loads(data)
        self.told += bodies

    def tell_gap(self, number: int, gap: Gap) -> None:
        self.told.append(gap)

    def tell_reset(self, number: int, cursor: str) -> None:
        self.told.append("reset")

    def delivered(self, *_: Any) -> None: ...
    def flush_soon(self) -> None: ...
    def tell_lost(self, number: int, receipts: list[str]) -> None: ...


def framed(chunk: Chunk, start: int, stop: int, number: int, others: Others) -> bytes:
    bodies = [json.loads(chunk.messages.bodies[at]) for at in visible(chunk, start, stop)]
    return json.dumps([bodies, cursor_after(chunk, stop, others)]).encode()


def fanout_of(queue: Any) -> Fanout:
    if "fanout" not in queue.extras:
        queue.extras["fanout"] = Fanout(queue, asyncio.get_running_loop(), {"json": framed}, lambda count: None)
    made: Fanout = queue.extras["fanout"]
    return made


async def test_a_reader_goes_on_while_a_stream_moves(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 1, 2)
    reader = await Reader(queue).begin("earliest")
    await eventually(lambda: reader.told == [1, 2])
    await moved(store, "s", "eu")
    await put(queue, 3)
    await eventually(lambda: reader.told == [1, 2, 3])


async def test_who_reads_from_wherever_gets_each_message_once(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1, 2)
    cursors = {0: (await Reader(queue).begin("earliest", credit=0)).cursor}
    reader = await Reader(queue).begin("earliest", credit=1)
    for count in (1, 2, 3):
        await eventually(partial(reader.has, count))
        cursors[count] = reader.cursor
        fanout_of(queue).allow(reader.sub, 1, reader)
    await moved(store, "s", "eu")
    await put(queue, 3, 4)
    await put(queue, 5)
    await eventually(lambda: reader.told == [0, 1, 2, 3])
    fanout_of(queue).allow(reader.sub, 5, reader)
    for count in range(4, 7):
        await eventually(partial(reader.has, count))
    cursors[6] = reader.cursor
    assert reader.told == list(range(6))
    late = await world.ready()
    for gateway in (store, late):
        there = gateway.queue(TENANT, "s")
        assert isinstance(there, PlacedStream)
        for count, cursor in cursors.items():
            again = await Reader(there).begin({"cursor": cursor})
            assert again.outcome == "complete"
            await eventually(partial(again.has_told, list(range(count, 6))))
            again.stop()
        last = await Reader(there).begin("latest")
        first = await Reader(there).begin("earliest")
        await eventually(partial(first.has_told, list(range(6))))
        assert last.told == []
        assert (await Reader(there).begin({"seq": 1})).outcome == "complete"


@pytest.mark.parametrize("partitions", [1, 3])
async def test_keys_keep_their_order_for_who_reads_on_and_for_who_begins_later(world: World, partitions: int) -> None:
    store = await world.ready()
    queue = await stream(store, partitions=partitions)
    live = await Reader(queue).begin("latest")
    said: list[int] = []

    async def produce(count: int) -> None:
        for _ in range(count):
            said.append(len(said))
            await put(queue, said[-1], key=f"k{said[-1] % 7}")

    await produce(40)
    moving = asyncio.ensure_future(moved(store, "s", "eu"))
    await produce(40)
    await moving
    await produce(40)
    await eventually(lambda: len(live.bodies) == 120)
    late = (await world.ready()).queue(TENANT, "s")
    assert isinstance(late, PlacedStream)
    again = await Reader(late).begin("earliest")
    slow = await Reader(late).begin("earliest", credit=50)
    await eventually(lambda: len(again.bodies) == 120 and len(slow.bodies) == 50)
    resumed = await Reader(late).begin({"cursor": slow.cursor})
    await eventually(lambda: len(resumed.bodies) == 70)
    for told in (live.told, again.told, slow.told + resumed.told):
        assert sorted(told) == said
        for key in range(7):
            assert [one for one in told if one % 7 == key] == said[key::7]


class Consumer(Taker):
    """Of a group: it acks what it has when it is told to."""

    def __init__(self, group: Any, credit: int = 100):
        super().__init__(group, credit)
        group.consumers += 1
        self.group = group

    def has(self, body: int) -> bool:
        return b"%d" % body in self.bodies

    async def ack(self) -> None:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.group.settle(self.receipts, done.set_result)
        assert all(verdict.ok for verdict in await asyncio.wait_for(done, PATIENCE_S))
        self.leases.clear()
        self.group.wanted_changed()


async def asked(ask: Any) -> Any:
    """What a request about a group came to."""
    while True:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ask(done.set_result)
        result = await asyncio.wait_for(done, PATIENCE_S)
        if isinstance(result, Unavailable):  # it moves just now
            await asyncio.sleep(0.02)
        elif isinstance(result, PushqError):
            raise result
        else:
            return result


async def opened(queue: PlacedStream, name: str, wanted: Any = None) -> PlacedGroup:
    group = await asked(lambda told: queue.open_group(name, wanted, told))
    assert isinstance(group, PlacedGroup)
    return group


async def lag(queue: PlacedStream, name: str) -> int | None:
    info = await found(lambda: queue.find_group(name))
    assert [one.name for one in await found(queue.list_groups)] == ([name] if info is not None else [])
    return sum(one.lag for one in info.lag) if info is not None else None


async def test_a_group_has_all_of_the_old_place_before_it_goes_on(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 1, 2)
    group = await opened(queue, "g", "earliest")
    consumer = Consumer(group)
    await eventually(lambda: consumer.bodies == [b"1", b"2"])
    await moved(store, "s", "eu")
    await put(queue, 3)
    assert await lag(queue, "g") == 3
    await queue.look_after(group)
    assert len(group.pieces) == 1 and consumer.bodies == [b"1", b"2"]
    await consumer.ack()
    await eventually(lambda: consumer.bodies == [b"1", b"2", b"3"])
    await consumer.ack()
    await eventually(lambda: group.is_looking is False)
    assert await lag(queue, "g") == 0


# --------------------------------------------------------------------------------------------------- places and cursors


async def test_a_time_is_found_in_whichever_place_has_it(world: World) -> None:
    store = await world.ready()
    queue = await stream(store, partitions=2)
    await put(queue, 1, key="a")
    await put(queue, 2, key="b")
    await asyncio.sleep(0.02)
    middle_ms = wall_clock_ms()
    await asyncio.sleep(0.02)
    await put(queue, 3, key="a")
    await moved(store, "s", "eu")
    await asyncio.sleep(0.02)
    late_ms = wall_clock_ms()
    await asyncio.sleep(0.02)
    await put(queue, 4, key="b")
    await put(queue, 5, key="a")
    for wanted, told in ((0, [1, 2, 3, 4, 5]), (middle_ms, [3, 4, 5]), (late_ms, [4, 5]), (late_ms + 60_000, [])):
        reader = await Reader(queue).begin({"time": wanted})
        assert reader.outcome == "complete", wanted
        await eventually(partial(reader.has, len(told)))
        assert sorted(reader.told) == told


async def test_what_was_dropped_in_either_place_is_a_gap_and_nothing_else_is(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1, 2)
    start = await Reader(queue).begin("earliest", credit=0)
    end = await Reader(queue).begin("latest", credit=0)
    live = await Reader(queue).begin("latest")
    await moved(store, "s", "eu")
    await put(queue, 3, 4)
    await eventually(lambda: live.told == [3, 4])
    floor = queue.definition.floor
    await queue.pieces[0].purge("new")
    await put(queue, 5)
    await eventually(lambda: live.told == [3, 4, 5])
    hole = Gap(floor, floor + 1)
    for cursor, told in ((start.cursor, [0, 1, 2, hole, 5]), (end.cursor, [hole, 5])):
        reader = await Reader(queue).begin({"cursor": cursor})
        await eventually(partial(reader.has_told, told), lambda reader=reader: reader.told)
    await queue.pieces[1].purge("old")
    for cursor, told in ((start.cursor, [Gap(0, 2), hole, 5]), (end.cursor, [hole, 5]), (live.cursor, [])):
        reader = await Reader(queue).begin({"cursor": cursor})
        await eventually(partial(reader.has_told, told), lambda reader=reader: reader.told)


async def test_a_slow_reader_is_told_what_was_dropped_of_the_old_place(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1, 2)
    slow = await Reader(queue).begin("earliest", credit=1)
    await eventually(lambda: slow.told == [0])
    await moved(store, "s", "eu")
    await put(queue, 3)
    await queue.pieces[1].purge("old")
    await eventually(lambda: queue.parts.all[0].legs[0].part.floor == 3)
    fanout_of(queue).allow(slow.sub, 5, slow)
    await eventually(lambda: slow.has_told([0, Gap(1, 2), 3]), lambda: slow.told)


async def test_who_stands_at_the_end_of_the_new_place_misses_nothing_where_that_is_purged(world: World) -> None:
    """A slot that goes from partition to partition is an entry, which nobody is shown."""
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0)
    await moved(store, "s", "eu")
    live = await Reader(queue).begin("latest", credit=50)
    for number in range(1, 7):
        await put(queue, number, key=f"k{number}")
    await eventually(lambda: live.told == [1, 2, 3, 4, 5, 6])
    config = msgspec.structs.replace(queue.config, partitions=3)
    await store.update_queue(TENANT, "s", config, queue.definition.version)
    await eventually(lambda: len(queue.parts.all) == 3)
    nodes = [node for node in world.eu.nodes if (TENANT, "s") in node.metadata.queues]
    there = nodes[0].queues.of(nodes[0].metadata.find(TENANT, "s"))
    await eventually(lambda: there.all[0].state.end > queue.definition.floor + 6, "slots have gone from there")
    part = queue.parts.all[0].legs[1].part
    await queue.current.purge("new")
    await eventually(lambda: part.floor > queue.definition.floor + 6)
    for number in range(7, 14):
        await put(queue, number, key=f"k{number}")
    await eventually(lambda: len(live.bodies) == 13)
    assert sorted(live.bodies) == list(range(1, 14)) and live.bodies == live.told


async def test_who_had_all_of_a_place_that_is_forgotten_missed_nothing(world: World, forgetful: None) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1)
    behind = await Reader(queue).begin("earliest", credit=1)
    live = await Reader(queue).begin("latest")
    waits = await Reader(queue).begin("latest", credit=1)
    await eventually(lambda: behind.told == [0])
    await moved(store, "s", "eu")
    await eventually(lambda: [one.state for one in store.moves.under_way()] == ["draining"])
    await eventually(lambda: [one.left for one in store.moves.under_way()] == [2])
    with pytest.raises(Conflict, match="came from that cluster and still has messages there;"):
        await store.moves.begin(TENANT, "s", "main")
    await queue.pieces[1].purge("old")
    await eventually(lambda: not definition(store, "s").former, "the old place is forgotten")
    await put(queue, 2)
    await eventually(lambda: live.told == [2] and waits.told == [2])
    again = await Reader(queue).begin({"cursor": behind.cursor})
    await eventually(lambda: again.told == [Gap(1, queue.definition.floor - 1), 2])
    await moved(store, "s", "main")
    await put(queue, 3)
    await eventually(lambda: live.told == [2, 3])
    first = await Reader(queue).begin("earliest")
    await eventually(lambda: first.told == [2, 3])


@pytest.mark.parametrize("wanted", ["earliest", "latest", "time", "seq", "cursor"])
async def test_who_begins_while_a_place_is_forgotten_begins_in_the_places_that_are_left(
    world: World, forgetful: None, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    store = await world.ready()
    queue = await stream(store, partitions=1 if wanted == "seq" else 2)
    await put(queue, 0, 1, key="a")
    await moved(store, "s", "eu" if queue.definition.cluster == "" else "main")
    await put(queue, 2, key="a")
    await Reader(queue).begin("earliest")
    floor = queue.definition.floor
    begin = RemoteParts.begin
    cursor = queue.parts.cursor({part.number: part.number * floor for part in queue.parts.all})

    async def held_up(parts: RemoteParts, wanted: Any) -> Any:
        if definition(store, "s").former:
            await queue.pieces[1].purge("old")
            await eventually(lambda: not queue.definition.former, "the old place is forgotten")
        return await begin(parts, wanted)

    monkeypatch.setattr(RemoteParts, "begin", held_up)
    starts = {"time": {"time": 1}, "seq": {"seq": floor}, "cursor": {"cursor": cursor}}
    reader = await Reader(queue).begin(starts.get(wanted, wanted))
    await put(queue, 3, key="a")
    had = [3] if wanted == "latest" else [2, 3]
    await eventually(lambda: reader.bodies == had, lambda: reader.told)


async def test_who_waits_at_the_end_misses_nothing_of_a_place_that_never_had_anything(
    world: World, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = Shards("us")
    await third.open()
    try:
        store = await world.gateway(others=[world.eu.at, third.at])
        await eventually(lambda: all(one.is_ready for one in store.clusters.values()))
        queue = await stream(store, partitions=2)
        await put(queue, 0)
        live = await Reader(queue).begin("earliest")
        await eventually(lambda: live.told == [0])
        cursor = live.cursor
        for to in ("eu", "us"):
            with monkeypatch.context() as patient:
                patient.setattr(moving, "MOVE_FORGET_MS", 60_000)
                await moved(store, "s", to)
                await eventually(lambda: len(queue.parts.all[0].legs) == 2, "it is open")
            await queue.pieces[1].purge(to)
            await eventually(lambda: len(queue.parts.all[0].legs) == 1, "the place before is forgotten")
        await put(queue, 1)
        await eventually(partial(live.has, 2))
        again = await Reader(queue).begin({"cursor": cursor})
        await eventually(partial(again.has, 1))
        assert (live.told, again.told) == ([0, 1], [1])
        await store.close()
    finally:
        await third.close()


async def test_what_was_dropped_before_it_came_here_is_told_once_to_who_reads_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0)
    readers = [await Reader(queue).begin("earliest"), await Reader(queue).begin("earliest", credit=50)]
    await eventually(lambda: all(reader.told == [0] for reader in readers))
    comes, open_at = asyncio.Event(), JoinedParts._open_at

    async def held_up(parts: JoinedParts, site: Any) -> None:
        await comes.wait()
        await open_at(parts, site)

    monkeypatch.setattr(JoinedParts, "_open_at", held_up)
    await moved(store, "s", "eu")
    await put(queue, 1, 2)
    await queue.current.purge("new")
    comes.set()
    hole = Gap(queue.definition.floor, queue.definition.floor + 1)
    for body in (3, 4):
        await put(queue, body)
        for reader in readers:
            told = [0, hole, *range(3, body + 1)]
            await eventually(partial(reader.has_told, told), lambda reader=reader: reader.told)


async def test_a_gateway_that_heard_late_of_a_move_reads_on_from_a_cursor_of_another_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await world.ready(), await world.ready()
    queue = await stream(store)
    await put(queue, 1)
    late = other.queue(TENANT, "s")
    assert isinstance(late, PlacedStream)
    before = await Reader(late).begin("earliest")
    await eventually(lambda: before.told == [1])
    news: list[Any] = []
    taken = other.defined
    monkeypatch.setattr(other, "defined", lambda *args, **named: news.append(partial(taken, *args, **named)))
    await moved(store, "s", "eu")
    await put(queue, 2, 3)
    reader = await Reader(queue).begin("earliest", credit=2)
    await eventually(lambda: reader.told == [1, 2])

    async def hear() -> None:
        monkeypatch.setattr(other, "defined", taken)
        for told in news:
            told()

    monkeypatch.setattr(other, "hear", hear)
    again = await Reader(late).begin({"cursor": reader.cursor})
    assert again.outcome == "complete"
    await eventually(lambda: again.told == [3])
    await eventually(lambda: before.told == [1, 2, 3])


async def test_a_partition_that_only_the_new_place_has_waits_for_all_of_the_old_one(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    live = await Reader(queue).begin("latest")
    for number in range(12):
        await put(queue, number, key=f"k{number % 3}")
    await moved(store, "s", "eu")
    config = msgspec.structs.replace(queue.config, partitions=3)
    await store.update_queue(TENANT, "s", config, queue.definition.version)
    await eventually(lambda: len(queue.parts.all) == 3)
    for number in range(12, 24):
        await put(queue, number, key=f"k{number % 3}")
    early = await Reader(queue).begin("earliest", credit=6)
    await eventually(lambda: early.told == list(range(6)))
    readers = [live, await Reader(queue).begin("earliest"), await Reader(queue).begin({"cursor": early.cursor})]
    for reader, first in zip(readers, (0, 0, 6), strict=True):
        await eventually(partial(reader.has, 24 - first))
        for key in range(3):
            assert [one for one in reader.told if one % 3 == key] == list(range(first + key, 24, 3))


async def test_a_stream_goes_on_to_a_third_cluster_and_is_read_through_all_of_them(world: World) -> None:
    third = Shards("us")
    await third.open()
    try:
        store = await world.gateway(others=[world.eu.at, third.at])
        await eventually(lambda: all(one.is_ready for one in store.clusters.values()))
        queue = await stream(store)
        live = await Reader(queue).begin("latest")
        group = await opened(queue, "g")
        consumer = Consumer(group)
        await put(queue, 1)
        await moved(store, "s", "eu")
        await put(queue, 2)
        await moved(store, "s", "us")
        await put(queue, 3)
        await eventually(lambda: live.told == [1, 2, 3])
        reader = await Reader(queue).begin("earliest")
        await eventually(lambda: reader.told == [1, 2, 3])
        for count in range(1, 4):
            await eventually(partial(consumer.has, count))
            await consumer.ack()
        assert consumer.bodies == [b"1", b"2", b"3"]
        await store.close()
    finally:
        await third.close()


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_stream_moves_to_independent_hosts_and_back(world: World, partitions: int, forgetful: None) -> None:
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        store = await world.gateway(others=[ClusterAt("hosts", FixedDirectory(addresses), addresses)])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        queue = await stream(store, partitions=partitions)
        live = await Reader(queue).begin("latest")
        consumer = Consumer(await opened(queue, "g"))
        there, back = ("main", "hosts") if queue.definition.cluster else ("hosts", "main")
        for number, to in enumerate((there, back)):
            await put(queue, 2 * number, key="k")
            await moved(store, "s", to)
            await put(queue, 2 * number + 1, key="k")
            await eventually(partial(live.has_told, list(range(2 * number + 2))))
            await eventually(partial(consumer.has, 2 * number))
            await consumer.ack()
            await eventually(partial(consumer.has, 2 * number + 1))
            await consumer.ack()
            await queue.pieces[1].purge(f"old{number}")
            await eventually(lambda: not definition(store, "s").former)
        assert consumer.bodies == [b"0", b"1", b"2", b"3"]
        await store.close()


async def test_nothing_is_kept_of_a_stream_that_nobody_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0)
    await moved(store, "s", "eu")
    await put(queue, 1)
    reader = await Reader(queue).begin("earliest")
    await eventually(lambda: reader.told == [0, 1])
    reader.stop()
    monkeypatch.setattr(tails, "TAIL_IDLE_SECONDS", -1)
    await put(queue, 2)
    await eventually(lambda: "fanout" not in queue.extras)
    assert [piece._parts for piece in queue.pieces if isinstance(piece, RemoteStream)] == [None, None]
    monkeypatch.undo()
    again = await Reader(queue).begin("earliest")
    await eventually(lambda: again.told == [0, 1, 2])


async def test_a_stream_is_not_split(world: World) -> None:
    store = await world.ready()
    await stream(store)
    with pytest.raises(InvalidRequest, match="is a stream, which this version cannot split over"):
        await store.moves.spread(TENANT, "s", ["main", "eu"])


async def test_ids_of_before_the_move_are_known_after_it(world: World) -> None:
    store = await world.ready()
    queue = await stream(store, dedupe="id")
    first = await publish(queue, b"1", ids=[b"A"])
    assert isinstance(first, Published)
    await moved(store, "s", "eu")
    again = await publish(queue, b"1", b"2", ids=[b"A", b"B"])
    assert isinstance(again, Published) and again.others == {0: Original(first.base, 0)}
    reader = await Reader(queue).begin("earliest")
    await eventually(lambda: reader.told == [1, 2])


async def test_ranges_peeks_and_numbers_are_of_all_places(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1, 2)
    await moved(store, "s", "eu")
    await put(queue, 3, 4)
    floor = queue.definition.floor
    [offsets] = await found(queue.offsets_of)
    assert (offsets.first, offsets.next) == (0, floor + 2)
    for start, until, wanted in (
        (0, None, [0, 1, 2, 3, 4]),
        (1, floor + 1, [1, 2, 3]),
        (0, 2, [0, 1]),
        (2, floor, [2]),
        (3, None, [3, 4]),
        (floor + 1, None, [4]),
    ):
        read: list[int] = []
        at = start
        while until is None or at < until:
            page = await queue.read_range(0, at, until, messages_max=2, bytes_max=1_000_000, render=rendered)
            read += [int(one) for one in page.messages]
            assert page.at.first == 0 and page.at.next == floor + 2
            if page.next == at:
                break
            at = page.next
        assert read == wanted and at == (until if until is not None else floor + 2)
    page = await queue.peek(PeekFilter(limit=10))
    assert len(page.items) == 5
    stats = await found(queue.stats)
    assert (stats.ready, stats.published_total) == (5, 5)


async def test_who_begins_while_a_former_cluster_is_away_is_told_which(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "OTHERS_SECONDS_MAX", 0.1)
    monkeypatch.setattr(joined, "TAIL_WAIT_SECONDS_MAX", 0.1)
    store = await world.ready()
    queue = next(one for one in [await stream(store, "a"), await stream(store, "b")] if one.definition.cluster)
    await moved(store, queue.name, "main")
    await world.eu.go()
    late = (await world.gateway()).queue(TENANT, queue.name)
    assert isinstance(late, PlacedStream)
    with pytest.raises(Unavailable, match=r"not all of its clusters are reachable: .*'eu'"):
        await Reader(late).begin("latest")


async def test_a_page_of_a_stream_that_never_moved_is_one_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1)
    page = partial(queue.read_range, 0, 0, None, messages_max=9, bytes_max=1_000_000, render=rendered)
    await page()
    requests: list[Any] = []
    ask = RemoteStream.ask

    async def counted(stream: RemoteStream, operation: Any, **named: Any) -> Any:
        requests.append(operation)
        return await ask(stream, operation, **named)

    monkeypatch.setattr(RemoteStream, "ask", counted)
    assert (await page()).messages == [b"0", b"1"]
    assert len(requests) == 1


def rendered(chunk: Chunk, numbers: Sequence[int]) -> list[bytes]:
    return [bytes(chunk.messages.bodies[number]) for number in numbers]


async def test_another_leader_of_one_place_takes_nothing_from_who_reads_in_the_other(world: World) -> None:
    """Each cluster counts its own epochs: those of two are never compared."""
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1)
    old = await Reader(queue).begin("earliest", credit=2)
    await eventually(lambda: old.told == [0, 1])
    await moved(store, "s", "eu" if queue.definition.cluster == "" else "main")
    await put(queue, 2)
    new = await Reader(queue).begin("earliest", credit=3)
    await eventually(lambda: new.told == [0, 1, 2])
    read = fanout_of(queue).tails
    for epoch, start, is_rewound in ((7, 2, False), (8, 1, True)):
        part = queue.parts.all[0].legs[0].part
        part.take(part.now._replace(epoch=epoch, epochs=[(1, 0), (epoch, start)]), may_go_back=False)
        assert read.rewound(old.sub.reading) is is_rewound
        assert read.rewound(new.sub.reading) is False
    assert dict(old.sub.reading.places) == {0: 1}
    assert decode_cursor(new.cursor).positions[0].epoch == 1


# --------------------------------------------------------------------------------------------------------------- groups


async def test_a_group_with_leases_takes_from_both_places_at_once(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await asked(lambda told: queue.put_group("g", "earliest", "leases", told))
    consumer = Consumer(await opened(queue, "g"))
    await put(queue, 1)
    await eventually(lambda: consumer.bodies == [b"1"])
    await moved(store, "s", "eu")
    await put(queue, 2)
    await eventually(lambda: consumer.bodies == [b"1", b"2"])
    await consumer.ack()
    assert await lag(queue, "g") == 0


async def test_in_strict_order_a_group_with_leases_goes_on_when_the_old_place_is_settled(world: World) -> None:
    store = await world.ready()
    queue = await stream(store, ordering="strict")
    await asked(lambda told: queue.put_group("g", "earliest", "leases", told))
    consumer = Consumer(await opened(queue, "g"))
    await put(queue, 1, key="k")
    await eventually(lambda: consumer.bodies == [b"1"])
    await moved(store, "s", "eu")
    await put(queue, 2, key="k")
    await queue.look_after(consumer.group)
    assert len(consumer.group.pieces) == 1 and consumer.bodies == [b"1"]
    await consumer.ack()
    await eventually(lambda: consumer.bodies == [b"1", b"2"])


@pytest.mark.parametrize("mode", ["offsets", "leases"])
async def test_a_group_that_nobody_uses_is_taken_on_before_the_old_place_is_forgotten(
    world: World, forgetful: None, mode: Any
) -> None:
    store = await world.ready()
    queue = await stream(store, partitions=2)
    await asked(lambda told: queue.put_group("g", "earliest", mode, told))
    await put(queue, 1, key="a")
    await put(queue, 2, key="b")
    await moved(store, "s", "eu")
    await put(queue, 3, key="a")
    assert await lag(queue, "g") == 3
    await queue.pieces[1].purge("old")
    await eventually(lambda: not definition(store, "s").former)
    assert await lag(queue, "g") == 1
    consumer = Consumer(await opened(queue, "g"))
    await eventually(lambda: consumer.bodies == [b"3"])


@pytest.mark.parametrize(("mode", "partitions"), [("offsets", 1), ("leases", 1), ("offsets", 2), ("leases", 2)])
async def test_a_group_that_nobody_uses_is_told_of_what_was_dropped_after_the_place_is_forgotten(
    world: World, forgetful: None, mode: Any, partitions: int
) -> None:
    store = await world.ready()
    queue = await stream(store, partitions=partitions)
    await asked(lambda told: queue.put_group("g", "earliest", mode, told))
    await asked(lambda told: queue.put_group("late", "latest", mode, told))
    await put(queue, 1, 2, key="a")
    await moved(store, "s", "eu" if queue.definition.cluster == "" else "main")
    await put(queue, 3, key="a")
    await asked(lambda told: queue.put_group("late", "latest", None, told))
    await queue.pieces[1].purge("old")
    await eventually(lambda: not definition(store, "s").former)
    [gap] = (await opened(queue, "g")).take_gaps()
    assert (gap.first, gap.last) == (0, 1) and (gap.partition is None) is (partitions == 1)
    assert (await opened(queue, "late")).take_gaps() == []
    late = await world.ready()
    again = late.queue(TENANT, "s")
    assert isinstance(again, PlacedStream)
    await eventually(lambda: definition(late, "s").version == definition(store, "s").version)
    assert (await opened(again, "g")).take_gaps() == [], "a gap is told once"


async def test_of_groups_that_have_more_before_them_nobody_asks_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0)
    for number in range(3):
        await asked(lambda told: queue.put_group(f"g{number}", "earliest", None, told))  # noqa: B023
    await asked(lambda told: queue.put_group("done", "latest", None, told))
    await moved(store, "s", "eu")
    seen: list[str] = []
    look = RemoteStream.group_seen

    async def counted(stream: RemoteStream, name: str) -> Any:
        seen.append(name)
        return await look(stream, name)

    monkeypatch.setattr(RemoteStream, "group_seen", counted)
    assert await queue.carry_groups() is False
    assert set(seen) <= {"done"}


async def test_groups_begin_where_they_are_told_to_in_whichever_place_that_is(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1)
    at_one = (await Reader(queue).begin("earliest", credit=1)).sub
    await eventually(lambda: queue.parts.all[0].number == 0 and at_one.messages_sent == 1)
    cursor = queue.parts.cursor(at_one.reading.places)
    await moved(store, "s", "eu")
    await put(queue, 2, 3)
    floor = queue.definition.floor
    new = queue.parts.cursor({0: floor + 1})
    for number, (wanted, bodies) in enumerate(
        (
            ("earliest", [b"0", b"1", b"2", b"3"]),
            (None, []),
            ({"seq": 1}, [b"1", b"2", b"3"]),
            ({"seq": floor + 1}, [b"3"]),
            ({"cursor": cursor}, [b"1", b"2", b"3"]),
            ({"cursor": new}, [b"3"]),
            ({"time": 0}, [b"0", b"1", b"2", b"3"]),
        )
    ):
        group = await opened(queue, f"g{number}", wanted)
        consumer = Consumer(group, 1)
        for count in range(len(bodies)):
            await eventually(lambda: consumer.bodies == bodies[: count + 1], lambda: (wanted, consumer.bodies))  # noqa: B023
            await consumer.ack()
            consumer.credit = 1
            group.wanted_changed()
        info = await found(lambda: queue.find_group(f"g{number}"))  # noqa: B023
        assert info is not None and sum(one.lag for one in info.lag) == 0, wanted


async def test_a_group_goes_back_and_forth_over_both_places(world: World) -> None:
    store, other = await world.ready(), await world.ready()
    queue = await stream(store)
    await put(queue, 0, 1)
    group = await opened(queue, "g", "earliest")
    consumer = Consumer(group)
    await eventually(lambda: len(consumer.bodies) == 2)
    await consumer.ack()
    await moved(store, "s", "eu")
    await put(queue, 2, 3)
    await eventually(lambda: len(consumer.bodies) == 4)
    await consumer.ack()
    beside = other.queue(TENANT, "s")
    assert isinstance(beside, PlacedStream)
    await eventually(lambda: beside.definition.cluster == queue.definition.cluster)
    for to, told in ({"seq": 1}, [b"1", b"2", b"3"]), ("latest", []), ({"seq": queue.definition.floor}, [b"2", b"3"]):
        consumer.bodies.clear()
        info = await asked(lambda done: beside.put_group("g", to, None, done))  # noqa: B023
        assert sum(one.lag for one in info.lag) == len(told)
        acked = 0
        while acked < len(told):
            await eventually(lambda: len(consumer.bodies) > acked)  # noqa: B023
            acked = len(consumer.bodies)
            await consumer.ack()
        assert consumer.bodies == told
        assert await lag(queue, "g") == 0 and not group.deleted


async def test_a_group_is_deleted_in_all_places_and_its_consumers_hear_of_it(world: World) -> None:
    store, other = await world.ready(), await world.ready()
    queue = await stream(store)
    await put(queue, 0)
    group = await opened(queue, "g", "earliest")
    consumer = Consumer(group)
    gone: list[Any] = []
    store.on_deleted(gone.append)
    await eventually(lambda: len(consumer.bodies) == 1)
    await consumer.ack()
    await moved(store, "s", "eu")
    await put(queue, 1)
    await eventually(lambda: len(consumer.bodies) == 2)
    beside = other.queue(TENANT, "s")
    assert isinstance(beside, PlacedStream)
    await asked(lambda told: beside.delete_group("g", told))
    await eventually(lambda: gone == [group])
    assert group.deleted and await lag(queue, "g") is None
    with pytest.raises(NotFound):
        await asked(lambda told: queue.delete_group("g", told))
    again = Consumer(await opened(queue, "g"))
    await put(queue, 2)
    await eventually(lambda: again.bodies == [b"2"])


async def test_what_is_gone_of_the_new_place_before_a_group_comes_there_it_is_told_of(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await put(queue, 0)
    group = await opened(queue, "g", "earliest")
    consumer = Consumer(group)
    await eventually(lambda: len(consumer.bodies) == 1)
    await moved(store, "s", "eu")
    await put(queue, 1, 2)
    await queue.current.purge("new")
    await put(queue, 3)
    await consumer.ack()
    await eventually(lambda: consumer.bodies == [b"0", b"3"])
    floor = queue.definition.floor
    assert group.take_gaps() == [Gap(floor, floor + 1)]


async def test_groups_stay_as_they_are_while_the_stream_is_on_its_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving.Moves, "_arrive", held)
    store = await world.ready()
    queue = await stream(store)
    group = await opened(queue, "g")
    await store.moves.begin(TENANT, "s", "eu" if queue.definition.cluster == "" else "main")
    await eventually(lambda: queue.definition.moving_to is not None)
    await queue.home.adopted.tell([queue.definition])
    for ask in (
        lambda told: queue.open_group("other", None, told),
        lambda told: queue.put_group("g", "earliest", None, told),
        lambda told: queue.delete_group("g", told),
    ):
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ask(done.set_result)
        answer = await asyncio.wait_for(done, PATIENCE_S)
        assert isinstance(answer, Unavailable) and "is moving to another cluster" in answer.detail
    assert await opened(queue, "g") is group


async def held(moves: Any, definition: Any) -> None:
    """It is sealed, and no gateway goes on."""


async def test_a_gateway_that_has_not_heard_of_a_move_changes_no_groups(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await opened(queue, "g")
    old, version = queue.current, queue.definition.version
    assert isinstance(old, RemoteStream)
    await moved(store, "s", "eu" if queue.definition.cluster == "" else "main")
    await old.home.adopted.tell([queue.definition])
    for asking in (
        DeleteGroup(old.place_there, "g", version),
        PutGroup(old.place_there, "g", "latest", None, version),
        OpenGroup(old.place_there, "other", None, version),
        CarryGroup(old.place_there, "third", "offsets", version),
    ):
        with pytest.raises(Unavailable, match="has moved to another cluster"):
            await old.ask(asking)
    assert await lag(queue, "g") == 0


async def test_a_live_reader_that_falls_behind_in_the_new_place_goes_on_there(world: World) -> None:
    store = await world.ready()
    queue = await stream(store, partitions=2)
    live = await Reader(queue).begin("latest")
    await put(queue, 0, key="k")
    await eventually(lambda: live.told == [0])
    await moved(store, "s", "eu" if queue.definition.cluster == "" else "main")
    await put(queue, 1, key="k")
    await eventually(lambda: live.told == [0, 1])
    live.writable = False
    await put(queue, 2, key="k")
    await eventually(lambda: not live.sub.live)
    live.writable = True
    fanout_of(queue).start(live.sub, live)
    await put(queue, 3, key="k")
    await eventually(lambda: live.told == [0, 1, 2, 3], lambda: live.told)
    part = next(one.legs[1].part for one in queue.parts.all if one.end > queue.definition.floor)
    lost = part.now._replace(epoch=9, epochs=[*part.now.epochs, (9, int(part.end) - 1)])
    part.take(lost, may_go_back=False)
    await eventually(lambda: live.told == [0, 1, 2, 3, "reset"], lambda: live.told)


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_place_whose_clock_is_behind_is_read_after_the_one_before_all_the_same(
    world: World, partitions: int
) -> None:
    past = Shards("past")
    past.nodes = [Node(MemoryEngine(), directory=None, clock_ms=lambda: wall_clock_ms() - 1_000_000) for _ in range(2)]
    async with AsyncExitStack() as opened:
        await past.open()
        opened.push_async_callback(past.close)
        store = await world.gateway(others=[past.at])
        opened.push_async_callback(store.close)
        await eventually(lambda: all(one.is_ready for one in store.clusters.values()))
        made = [await stream(store, f"s{number}", partitions=partitions) for number in range(2)]
        queue = next(one for one in made if one.definition.cluster == "")
        for number in range(20):
            await put(queue, number, key=f"k{number}")
        await moved(store, queue.name, "past")
        config = msgspec.structs.replace(queue.config, partitions=3)
        await store.update_queue(TENANT, queue.name, config, queue.definition.version)
        await found(lambda: queue.parts)
        await eventually(lambda: len(queue.parts.all) == 3)
        for number in range(20, 40):
            await put(queue, number, key=f"k{number}")
        first = await Reader(queue).begin("earliest")
        await eventually(partial(first.has, 40))
        slow = await Reader(queue).begin("earliest", credit=7)
        await eventually(partial(slow.has, 7))
        resumed = await Reader(queue).begin({"cursor": slow.cursor})
        await eventually(partial(resumed.has, 33))
        for told in (first.told, slow.told + resumed.told):
            assert sorted(told[:20]) == list(range(20)), "all of the old place comes first"
            assert sorted(told) == list(range(40))


async def test_a_live_reader_is_told_of_what_the_new_place_dropped_before_it_was_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    queue = await stream(store)
    live = await Reader(queue).begin("latest")
    may_read = asyncio.Event()
    reads_to_its_end = JoinedParts._read_to_its_end

    async def held_up(parts: JoinedParts, of_place: Any) -> None:
        await may_read.wait()
        await reads_to_its_end(parts, of_place)

    monkeypatch.setattr(JoinedParts, "_read_to_its_end", held_up)
    await put(queue, 0)
    await moved(store, "s", "eu" if queue.definition.cluster == "" else "main")
    await put(queue, 1, 2)
    await queue.current.purge("new")
    await put(queue, 3)
    assert live.told == [0]
    may_read.set()
    floor = queue.definition.floor
    await eventually(lambda: live.told == [0, Gap(floor, floor + 1), 3], lambda: live.told)


async def test_a_group_that_is_put_to_the_end_leaves_the_old_place_behind(world: World) -> None:
    store = await world.ready()
    queue = await stream(store)
    await asked(lambda told: queue.put_group("g", "earliest", "leases", told))
    await put(queue, 0, 1)
    await moved(store, "s", "eu" if queue.definition.cluster == "" else "main")
    await put(queue, 2)
    assert await lag(queue, "g") == 3
    info = await asked(lambda told: queue.put_group("g", "latest", None, told))
    assert info.mode == "leases" and sum(one.lag for one in info.lag) == 0
    consumer = Consumer(await opened(queue, "g"))
    await put(queue, 3)
    await eventually(lambda: consumer.bodies == [b"3"])
