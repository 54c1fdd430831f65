"""A stream that gateways read while its leader of mode `async` is lost with its end: real nodes, without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backend_store.client import Chunk, Gap
from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.core.limits import EPOCHS_TOLD_MAX
from backend_store.core.log.chunk import KIND_JSON, plain_blocks
from backend_store.core.log.cursor import decode_cursor
from backend_store.model import Epoch, Published, PushqError, QueueConfig, Unavailable
from backend_store.node.node import Node
from backend_store.remote.queues.answers import Known
from backend_store.remote.queues.tails import RemotePart, RemoteParts
from backend_store.service import ranges, tailing
from backend_store.service.tailing import StartReading, tailing_of
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import PartNow, Place, Want
from push.delivery.fanout import Fanout, cursor_after
from push.delivery.lookup_retry import LookingUp, found, handled
from push.delivery.stream_reader import Others
from push.delivery.wait_times import WaitTimes
from push.session.subscriptions import StreamSubscription
from push.transports.longpoll import receive_stream
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio
STREAM = QueueConfig(kind="stream", retention_ms=None)


class Backend:
    """Whoever leads: the epoch is its own."""

    def __init__(self, engine: MemoryEngine, epoch: int):
        self.engine = engine
        self.node = Node(engine, directory=None, on_fatal=lambda error: None, epoch=Epoch(epoch))
        self.store = EmbeddedStore(self.node)

    @property
    def stream(self) -> EmbeddedQueue:
        return self.store.queue("default", "s")

    async def publish(self, *bodies: str) -> None:
        done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
        self.stream.publish(plain_blocks(KIND_JSON, [json.dumps(body).encode() for body in bodies]), done.set_result)
        assert isinstance(await done, Published)

    async def resize(self, partitions: int) -> None:
        definition = self.stream.definition
        config = msgspec.structs.replace(definition.config, partitions=partitions)
        await self.store.update_queue("default", "s", config, definition.version)
        parts = self.stream._partitions
        await eventually(
            lambda: parts.map is not None and not parts.map.table.moves and len(self.stream.parts.all) == partitions
        )

    def copied(self) -> MemoryEngine:
        """What a follower has of it."""
        image = MemoryEngine()
        image._rows = {table: dict(rows) for table, rows in self.engine._rows.items()}
        image._keys = {table: list(keys) for table, keys in self.engine._keys.items()}
        return image


class Gateway:
    """The stream as a gateway has it: what it asks, the leader of that moment answers."""

    deleted = is_looking = False
    name = "s"

    def __init__(self, leader: Backend):
        self.loop = asyncio.get_running_loop()
        self.tasks: list[asyncio.Task[Any]] = []
        self.extras: dict[str, Any] = {}
        self.consumers = 1
        self.uid = leader.stream.uid
        self.place_there = Place("default", "s", self.uid)
        self._known = Known(LookingUp, self.background)
        self.holds: asyncio.Event | None = None
        self.asks = 0
        self.leader = leader
        stream: Any = self
        self.parts = RemoteParts(stream)

    def led_by(self, leader: Backend) -> None:
        self.leader = leader
        self.hears()

    def hears(self) -> None:
        self.parts.heard(msgspec.msgpack.decode(msgspec.msgpack.encode(self.news()), type=list[PartNow]))

    async def hears_always(self) -> None:
        while True:
            self.hears()
            await asyncio.sleep(0.01)

    def news(self) -> list[Any]:
        return tailing_of(self.leader.stream).now()

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(self.loop.create_task(work))
        return self.tasks[-1]

    def want(self, want: Want) -> None:
        """The leader is known."""

    def forget_parts(self, parts: RemoteParts) -> None:
        parts.close()

    def known(self, what: str, key: str, ask: Callable[[], Any], *, is_used_up: bool = False) -> Any:
        return self._known.of((self.place_there, key), what, ask, is_used_up=is_used_up)

    async def ask(self, asked: Any, *, may_repeat: bool = False) -> bytes:
        leader, holds = self.leader, self.holds
        self.asks += 1
        if isinstance(asked, StartReading):
            return msgspec.msgpack.encode(await tailing.start(leader.store, asked))
        answer = msgspec.msgpack.encode(await ranges.read(leader.store, asked))
        if holds is not None:
            await holds.wait()
        return answer

    async def learnt(self, chunks: list[bytes]) -> None:
        """Nothing is sealed."""

    def opened(self, chunk: Chunk, partition: int) -> Chunk:
        chunk.partition, chunk.seal, chunk.uid = partition, None, self.uid
        return chunk

    async def next_look(self) -> None:
        await asyncio.sleep(3600)

    def check_there(self) -> None:
        """It is."""


class Reader:
    def __init__(self) -> None:
        self.writable = True
        self.told: list[Any] = []
        """Bodies, and the offsets at which it was told to go on."""

    def write(self, data: bytes) -> None:
        self.told += json.loads(data)

    def tell_reset(self, number: int, cursor: str) -> None:
        self.told.append(int(decode_cursor(cursor).positions[0].offset))

    def tell_gap(self, number: int, gap: Gap) -> None:
        self.told.append(gap)

    def delivered(self, *_: Any) -> None: ...
    def flush_soon(self) -> None: ...
    def tell_lost(self, number: int, receipts: list[str]) -> None: ...


def framed(chunk: Chunk, start: int, stop: int, number: int, others: Others = None) -> bytes:
    assert cursor_after(chunk, stop, others)
    return json.dumps([json.loads(chunk.messages.bodies[n]) for n in range(start, stop)]).encode()


class Setup:
    """Two messages that all have, and three that the first leader has alone. The next one has others in their place."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    async def begin(self) -> Gateway:
        self.first = await self.leads(MemoryEngine(), 1)
        await self.first.store.create_queue("default", "s", STREAM)
        await self.first.publish("a", "b")
        self.copy = self.first.copied()
        await self.first.publish("lost 1", "lost 2", "lost 3")
        self.gateway = Gateway(self.first)
        self.gateway.hears()
        await self.is_at(5)
        self.fans_out()
        return self.gateway

    def fans_out(self) -> None:
        stream: Any = self.gateway
        self.fanout = Fanout(stream, asyncio.get_running_loop(), {"json": framed}, lambda count: None)

    async def leads(self, engine: MemoryEngine, epoch: int) -> Backend:
        backend = Backend(engine, epoch)
        self.nodes.append(backend.node)
        await backend.node.start()
        return backend

    def hears_of(self, epoch: int) -> bool:
        return all(part.epoch == epoch for part in self.gateway.parts.all)

    async def is_at(self, end: int) -> RemotePart:
        await eventually(lambda: self.gateway.parts.is_ready and self.gateway.parts.all[0].end == end)
        return self.gateway.parts.all[0]

    async def read(self, wanted: Any, *, credit: int | None = None) -> tuple[StreamSubscription, Reader]:
        start = await found(lambda: self.gateway.parts.start(wanted))
        reader = Reader()
        queue: Any = self.gateway
        sub = StreamSubscription(reader, 1, queue, start=start, credit=credit, key="json")
        self.fanout.start(sub, reader)
        return sub, reader

    async def fails_over(self, *bodies: str) -> Backend:
        second = await self.leads(self.copy, 2)
        for body in bodies:
            await second.publish(body)
        self.gateway.led_by(second)
        return second

    async def end(self) -> None:
        for task in self.gateway.tasks:
            task.cancel()
        await asyncio.gather(*self.gateway.tasks, return_exceptions=True)
        for node in self.nodes:
            await node.close()


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    await setup.begin()
    yield setup
    await setup.end()


LOST = ["lost 1", "lost 2", "lost 3"]


def _has_all(reader: Reader, bodies: set[str]) -> bool:
    return bodies <= set(reader.told)


def _has(reader: Reader, last: str) -> bool:
    return bool(reader.told) and reader.told[-1] == last


async def test_whoever_had_what_was_lost_is_told_and_misses_nothing_that_stands_in_its_place(setup: Setup) -> None:
    _, live = await setup.read("earliest")
    _, joins_late = await setup.read("latest")
    by_credit, paced = await setup.read("earliest", credit=4)
    halfway, slow = await setup.read("earliest")
    await eventually(lambda: live.told == ["a", "b", *LOST] and len(slow.told) == 5 and len(paced.told) == 4)
    slow.writable = False
    second = await setup.fails_over("c")
    await setup.is_at(3)
    slow.writable = True
    setup.fanout.start(halfway, slow)
    setup.fanout.allow(by_credit, 10, paced)
    await second.publish("d", "e", "f")
    setup.gateway.hears()
    await setup.is_at(6)
    for reader, before in ((live, LOST), (slow, LOST), (paced, LOST[:2])):
        await eventually(partial(_has, reader, "f"))
        assert reader.told == ["a", "b", *before, 2, "c", "d", "e", "f"]
    await eventually(lambda: joins_late.told == [2, "c", "d", "e", "f"])


async def test_who_had_not_come_so_far_reads_on_as_if_nothing_had_been(setup: Setup) -> None:
    sub, reader = await setup.read("earliest", credit=1)
    await eventually(lambda: reader.told == ["a"])
    await setup.fails_over("c", "d")
    await setup.is_at(4)
    setup.fanout.allow(sub, 10, reader)
    await eventually(lambda: reader.told == ["a", "b", "c", "d"])


async def test_a_leader_that_had_everything_resets_nobody(setup: Setup) -> None:
    _, live = await setup.read("latest")
    await setup.is_at(5)
    second = await setup.leads(setup.first.copied(), 2)
    setup.gateway.led_by(second)
    await eventually(lambda: setup.gateway.parts.all[0].epoch == 2)
    await second.publish("c")
    setup.gateway.hears()
    await eventually(lambda: live.told == ["c"])
    third = await setup.leads(second.copied(), 3)
    await third.publish("d")
    setup.gateway.led_by(third)
    await eventually(lambda: live.told == ["c", "d"])


async def test_two_leaders_that_are_lost_with_their_ends_are_told_of_twice(setup: Setup) -> None:
    _, live = await setup.read("earliest")
    await eventually(lambda: len(live.told) == 5)
    second = await setup.fails_over("c")
    await eventually(lambda: live.told[5:] == [2, "c"])
    image = second.copied()
    await second.publish("lost 4")
    setup.gateway.hears()
    await eventually(lambda: live.told[7:] == ["lost 4"])
    third = await setup.leads(image, 3)
    await third.publish("d")
    setup.gateway.led_by(third)
    await eventually(lambda: live.told[8:] == [3, "d"])


async def test_of_a_leader_of_whom_nothing_is_left_the_gateway_knows_where_it_began(setup: Setup) -> None:
    """It led, was read from, and was lost before anybody copied that."""
    await setup.fails_over("lost 4")
    await setup.is_at(3)
    _, live = await setup.read("latest")
    await asyncio.sleep(0)
    third = await setup.leads(setup.first.copied(), 3)
    setup.gateway.led_by(third)
    await eventually(lambda: live.told == [2, *LOST])


async def test_a_leader_that_was_lost_before_its_epoch_was_copied_resets_nobody(setup: Setup) -> None:
    """Also whoever comes with a cursor of that time has read nothing that is not there."""
    _, live = await setup.read("earliest")
    await eventually(lambda: len(live.told) == 5)
    second, image = await setup.leads(setup.first.copied(), 2), setup.first.copied()
    setup.gateway.led_by(second)
    await eventually(lambda: setup.gateway.parts.all[0].epoch == 2)
    cursor = (await _polled(setup, "earliest"))["cursor"]
    third = await setup.leads(image, 3)
    setup.gateway.led_by(third)
    await eventually(lambda: setup.gateway.parts.all[0].epoch == 3)
    assert (await _polled(setup, {"cursor": cursor}))["resume"] == "complete"
    await third.publish("d")
    setup.gateway.hears()
    await eventually(lambda: _has(live, "d"))
    assert live.told == ["a", "b", *LOST, "d"]


async def test_readers_of_a_log_of_which_nobody_knows_the_past_begin_anew_and_nobody_else_waits_for_them(
    setup: Setup,
) -> None:
    _, live = await setup.read("earliest")
    await eventually(lambda: len(live.told) == 5)
    third = await setup.leads(setup.copy, 3)
    await third.publish("c")
    setup.gateway.leader = third
    [now] = tailing_of(third.stream).now()
    setup.gateway.parts.heard([now._replace(epochs=now.epochs[-1:])])
    assert (await setup.is_at(3)).epoch == 3
    _, late = await setup.read("latest")
    await eventually(lambda: live.told[5:] == [0, "a", "b", "c"])
    await third.publish("d")
    setup.gateway.hears()
    await eventually(lambda: (live.told[9:], late.told) == (["d"], ["d"]))


async def test_a_page_that_a_shorter_leader_answers_is_asked_for_again_when_its_news_are_here(setup: Setup) -> None:
    """The backend had said that there is more, and is lost before it is asked."""
    _, live = await setup.read("latest")
    await setup.first.publish("lost 4")
    news = setup.gateway.news()
    second = await setup.leads(setup.copy, 2)
    setup.gateway.leader = second
    before = setup.gateway.asks
    setup.gateway.parts.heard(news)
    await eventually(lambda: setup.gateway.asks > before)
    await asyncio.sleep(0.02)
    asked = setup.gateway.asks
    await asyncio.sleep(0.05)
    assert setup.gateway.asks <= asked + 1, "it asks as fast as it can"
    setup.gateway.hears()
    await eventually(lambda: setup.gateway.parts.all[0].epoch == 2)
    await second.publish("c")
    setup.gateway.hears()
    await eventually(lambda: live.told == [2, "c"])


async def test_what_a_reader_fetched_beyond_the_end_is_forgotten_with_the_leader(setup: Setup) -> None:
    image = setup.first.copied()
    await setup.first.publish("lost 4")  # its news never come
    await setup.gateway.parts.all[0].page(2)
    second = await setup.leads(image, 2)
    await second.publish("c")
    setup.gateway.led_by(second)
    await setup.is_at(6)
    _, late = await setup.read("earliest")
    await eventually(lambda: late.told == ["a", "b", *LOST, "c"])


async def test_an_earlier_backend_tells_nothing_of_epochs_and_nobody_is_reset(setup: Setup) -> None:
    start, ends = await tailing.start(setup.first.store, StartReading(setup.gateway.place_there, "latest"))
    told = msgspec.msgpack.encode((tuple(start)[:4], ends))
    assert msgspec.msgpack.decode(told, type=tailing.Started).start.epochs == {}
    _, live = await setup.read("latest")
    second = await setup.leads(setup.first.copied(), 2)
    setup.gateway.leader = second
    setup.gateway.parts.heard([one._replace(epochs=()) for one in tailing_of(second.stream).now()])
    await eventually(lambda: setup.gateway.parts.all[0].epoch == 2)
    assert setup.gateway.parts.cursor({0: 5})
    await second.publish("c")
    setup.gateway.parts.heard([one._replace(epochs=()) for one in tailing_of(second.stream).now()])
    await eventually(lambda: live.told == ["c"])


async def test_who_reads_nothing_over_more_leaders_than_are_told_of_reads_on(setup: Setup) -> None:
    sub, paused = await setup.read("earliest", credit=5)
    await eventually(lambda: len(paused.told) == 5)
    leader = setup.first
    for epoch in range(2, EPOCHS_TOLD_MAX + 4):
        leader = await setup.leads(leader.copied(), epoch)
        setup.gateway.led_by(leader)
        await eventually(partial(setup.hears_of, epoch))
    assert len(setup.gateway.parts.all[0].now.epochs) == EPOCHS_TOLD_MAX
    await leader.publish("d")
    setup.gateway.hears()
    setup.fanout.allow(sub, 10, paused)
    await eventually(lambda: _has(paused, "d"))
    assert paused.told == ["a", "b", *LOST, "d"]


async def test_who_waits_at_an_empty_stream_is_not_reset_by_its_next_leader() -> None:
    setup = Setup()
    setup.first = await setup.leads(MemoryEngine(), 1)
    await setup.first.store.create_queue("default", "s", STREAM)
    setup.gateway = Gateway(setup.first)
    setup.gateway.hears()
    await setup.is_at(0)
    setup.fans_out()
    try:
        _, live = await setup.read("latest")
        second = await setup.leads(setup.first.copied(), 2)
        setup.gateway.led_by(second)
        await second.publish("c")
        setup.gateway.hears()
        await eventually(lambda: live.told == ["c"])
    finally:
        await setup.end()


async def test_a_long_poll_waits_on_under_a_leader_that_had_everything(setup: Setup) -> None:
    before = await _polled(setup, "earliest")
    waits = asyncio.ensure_future(_polled(setup, {"cursor": before["cursor"]}, wait_ms=20_000))
    await eventually(lambda: setup.fanout.waiting)
    second = await setup.leads(setup.first.copied(), 2)
    setup.gateway.led_by(second)
    await eventually(lambda: setup.gateway.parts.all[0].epoch == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waits.done()
    await second.publish("c")
    setup.gateway.hears()
    answer = await waits
    assert (answer["resume"], [one["body"] for one in answer["messages"]]) == ("complete", ["c"])


async def test_news_of_a_new_line_are_taken_also_of_an_older_epoch(setup: Setup) -> None:
    """A cluster was restored from a backup under gateways that live on."""
    later = await setup.leads(setup.first.copied(), 3)
    setup.gateway.led_by(later)
    await later.publish("lost 4")
    setup.gateway.hears()
    await setup.is_at(6)
    _, live = await setup.read("latest")
    restored = await setup.leads(setup.copy, 2)
    await restored.publish("c")
    setup.gateway.parts.follow()
    setup.gateway.parts._came.set()  # it was about to try again with what it had heard before
    for _ in range(20):
        await asyncio.sleep(0)
    setup.gateway.led_by(restored)
    setup.gateway.hears()  # and again, before the first was looked at
    await eventually(lambda: live.told == [2, "c"])


async def test_live_ones_who_were_reset_stand_where_the_others_do(setup: Setup) -> None:
    sub, live = await setup.read("earliest")
    await eventually(lambda: len(live.told) == 5)
    second = await setup.fails_over()
    await eventually(lambda: sub.live and live.told[5:] == [2])
    setup.fanout.allow(sub, 100, live)  # it leaves them, and takes their places along
    await second.publish("c")
    setup.gateway.hears()
    await eventually(lambda: live.told[5:] == [2, "c"])


async def test_what_was_lost_and_what_was_dropped_are_both_told(setup: Setup) -> None:
    _, live = await setup.read("earliest")
    await eventually(lambda: len(live.told) == 5)
    second = await setup.leads(setup.copy, 2)
    await second.publish("c")
    purged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    second.stream.parts.all[0].partition.on_purged = lambda: purged.set_result(None)
    asking = asyncio.ensure_future(second.stream.purge("p"))
    await purged
    await asking
    await second.publish("d")
    setup.gateway.led_by(second)
    await eventually(lambda: live.told[5:] == [3, "d"])


PARTITIONS = 3


@pytest.mark.parametrize("lost_count", [1, PARTITIONS])
async def test_who_had_what_was_lost_of_several_partitions_is_told_once(lost_count: int) -> None:
    """A cursor of then says where it stood in all of them, and one of now is good for all of them."""
    setup = Setup()
    setup.first = await setup.leads(MemoryEngine(), 1)
    config = msgspec.structs.replace(STREAM, partitions=PARTITIONS)
    await setup.first.store.create_queue("default", "s", config)
    for number in range(PARTITIONS):  # they go round
        await setup.first.publish(f"kept {number}")
    setup.copy = setup.first.copied()
    setup.gateway = Gateway(setup.first)
    setup.gateway.background(setup.gateway.hears_always())
    await eventually(lambda: setup.gateway.parts.is_ready and len(setup.gateway.parts.all) == PARTITIONS)
    setup.fans_out()
    try:
        kept = {f"kept {number}" for number in range(PARTITIONS)}
        lost = {f"lost {number}" for number in range(lost_count)}
        _, live = await setup.read("earliest")
        paused_at, paused = await setup.read("earliest", credit=PARTITIONS + lost_count)
        for body in sorted(lost):
            await setup.first.publish(body)
        await eventually(lambda: set(live.told) == set(paused.told) == kept | lost)
        before = (await _polled(setup, "earliest"))["cursor"]
        assert sum(int(part.end) for part in setup.gateway.parts.all) == PARTITIONS + lost_count
        second = await setup.fails_over()
        await eventually(partial(setup.hears_of, 2))
        setup.fanout.allow(paused_at, 100, paused)
        for number in range(2 * PARTITIONS):
            await second.publish(f"new {number}")
        new = {f"new {number}" for number in range(2 * PARTITIONS)}
        for reader in (live, paused):
            await eventually(partial(_has_all, reader, new))
            after = reader.told[PARTITIONS + lost_count :]
            assert after[0] == 1 and len(after) == 1 + 2 * PARTITIONS, after
        answer = await _polled(setup, {"cursor": before})
        assert (answer["resume"], {one["body"] for one in answer["messages"]}) == ("reset", new)
        assert (await _polled(setup, {"cursor": answer["cursor"]}))["resume"] == "complete"
    finally:
        await setup.end()


async def test_live_ones_are_told_of_what_was_lost_of_a_partition_that_came_while_they_read() -> None:
    setup = Setup()
    setup.first = await setup.leads(MemoryEngine(), 1)
    await setup.first.store.create_queue("default", "s", STREAM)
    await setup.first.publish("a")
    setup.gateway = Gateway(setup.first)
    setup.gateway.background(setup.gateway.hears_always())
    await eventually(lambda: setup.gateway.parts.is_ready)
    setup.fans_out()
    try:
        _, live = await setup.read("earliest")
        await eventually(lambda: live.told == ["a"])
        await setup.first.resize(2)
        await eventually(lambda: len(setup.gateway.parts.all) == 2)
        setup.copy = setup.first.copied()

        async def is_beside() -> bool:
            await setup.first.publish("lost")
            await asyncio.sleep(0.02)
            return int(setup.gateway.parts.all[1].end) > 0 and _has(live, "lost")

        await eventually(is_beside)
        await setup.fails_over("c")
        await eventually(lambda: _has(live, "c"), lambda: str(live.told))
        assert [one for one in live.told if isinstance(one, int)] == [1]
    finally:
        await setup.end()


async def test_who_was_answered_by_the_leader_before_goes_on_where_the_logs_part(setup: Setup) -> None:
    await setup.fails_over("c")
    await setup.is_at(3)
    setup.gateway.leader = setup.first
    _, live = await setup.read("latest")
    await eventually(lambda: live.told == [2, "c"])
    answer = await _polled(setup, "latest")
    assert (answer["resume"], [one["body"] for one in answer["messages"]]) == ("reset", ["c"])


async def test_a_long_poll_that_was_reset_before_it_waited_says_so_when_it_is_answered(setup: Setup) -> None:
    second = await setup.fails_over()
    await eventually(partial(setup.hears_of, 2))
    setup.gateway.leader = setup.first  # who answers that it begins at the end of what was lost
    waits = asyncio.ensure_future(_polled(setup, "latest", wait_ms=20_000))
    await eventually(lambda: setup.fanout.waiting)
    await second.publish("c")
    setup.gateway.led_by(second)
    answer = await waits
    assert (answer["resume"], [one["body"] for one in answer["messages"]]) == ("reset", ["c"])


async def test_a_partition_that_was_lost_with_its_leader_is_told_of() -> None:
    setup = Setup()
    setup.first = await setup.leads(MemoryEngine(), 1)
    config = msgspec.structs.replace(STREAM, ordering="strict", partitions=1)
    await setup.first.store.create_queue("default", "s", config)
    await setup.first.publish("a")
    setup.copy = setup.first.copied()
    await setup.first.resize(2)
    setup.gateway = Gateway(setup.first)
    setup.gateway.background(setup.gateway.hears_always())
    await eventually(lambda: setup.gateway.parts.is_ready and len(setup.gateway.parts.all) == 2)
    setup.fans_out()
    try:
        _, live = await setup.read("earliest")

        async def is_beside() -> bool:
            """Messages go round; one that lies in the second partition has come."""
            await setup.first.publish("lost")
            await asyncio.sleep(0.02)
            return int(setup.gateway.parts.all[1].end) > 0 and _has(live, "lost")

        await eventually(is_beside)
        polled = await _polled(setup, "earliest")
        second = await setup.fails_over("c")
        await eventually(lambda: _has(live, "c"), lambda: str(live.told))
        assert live.told[0] == "a" and live.told[-2:] == [1, "c"]
        await eventually(lambda: len(setup.gateway.parts.all) == 1)
        answer = await _polled(setup, {"cursor": polled["cursor"]})
        assert (answer["resume"], [one["body"] for one in answer["messages"]]) == ("reset", ["c"])
        assert second.stream.parts.start({"cursor": polled["cursor"]}).outcome == "reset"
    finally:
        await setup.end()


async def test_a_late_word_of_the_leader_before_changes_nothing(setup: Setup) -> None:
    _, live = await setup.read("latest")
    late = setup.gateway.news()
    await setup.fails_over("c")
    part = await setup.is_at(3)
    setup.gateway.parts.heard(late)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (part.epoch, part.end) == (2, 3)
    await eventually(lambda: live.told == [2, "c"])


async def test_a_late_answer_of_the_leader_before_is_not_read(setup: Setup) -> None:
    part = setup.gateway.parts.all[0]
    setup.gateway.holds = asyncio.Event()
    late = asyncio.ensure_future(part.page(2))
    await asyncio.sleep(0)
    holds, setup.gateway.holds = setup.gateway.holds, None
    await setup.fails_over("c", "d", "e", "f")
    await setup.is_at(6)
    holds.set()
    with pytest.raises(Unavailable, match="another leader"):
        await late
    chunk = await found(lambda: part.read(2))
    assert chunk is not None and chunk.epoch == 2


async def test_an_answer_of_a_leader_that_was_not_heard_of_yet_is_not_read(setup: Setup) -> None:
    part = setup.gateway.parts.all[0]
    second = await setup.leads(setup.copy, 2)
    await second.publish("c", "d", "e", "f")
    setup.gateway.leader = second
    with pytest.raises(Unavailable, match="another leader"):
        await part.page(2)
    setup.gateway.hears()
    await setup.is_at(6)


async def test_who_begins_at_a_leader_that_was_not_heard_of_yet_is_not_given_what_was_lost(setup: Setup) -> None:
    second = await setup.leads(setup.copy, 2)
    setup.gateway.leader = second
    reads = asyncio.ensure_future(setup.read({"seq": 1}))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reads.done()
    setup.gateway.hears()
    _, reader = await reads
    await second.publish("c")
    setup.gateway.hears()
    await eventually(lambda: reader.told == ["b", "c"])


async def _polled(setup: Setup, wanted: Any, *, wait_ms: int = 0) -> Any:
    hub: Any = SimpleNamespace(
        draining=False,
        full=False,
        spans=None,
        loop=setup.gateway.loop,
        polls={},
        delivered=0,
        unshown=0,
        waits={"poll": WaitTimes()},
        store=SimpleNamespace(steady_ms=lambda: 0),
        fanout=lambda queue: setup.fanout,
    )

    async def never() -> Any:
        await asyncio.Event().wait()

    queue: Any = setup.gateway
    answer = await handled(lambda: receive_stream(hub, queue, limit=10, wait_ms=wait_ms, wanted=wanted, receive=never))
    assert answer is not None
    return json.loads(answer)


async def test_a_long_poll_that_stood_behind_what_was_lost_says_reset(setup: Setup) -> None:
    before = await _polled(setup, "earliest")
    assert [one["body"] for one in before["messages"]] == ["a", "b", *LOST]
    waits = asyncio.ensure_future(_polled(setup, {"cursor": before["cursor"]}, wait_ms=20_000))
    for _ in range(20):
        await asyncio.sleep(0)
    await setup.fails_over("c")
    answer = await waits
    assert answer["resume"] == "reset"
    if not answer["messages"]:  # it may be told before what stands there now has come
        answer = await _polled(setup, {"cursor": answer["cursor"]}, wait_ms=20_000)
        assert answer["resume"] == "complete"
    assert [one["body"] for one in answer["messages"]] == ["c"]
    again = await _polled(setup, {"cursor": before["cursor"]})
    assert (again["resume"], [one["body"] for one in again["messages"]]) == ("reset", ["c"])
    assert (await _polled(setup, {"cursor": again["cursor"]}))["resume"] == "complete"
