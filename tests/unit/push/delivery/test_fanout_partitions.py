"""The fan-out of a stream with several partitions: live readers share frames, and everybody keeps the order of keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from backend_store.client import Chunk, Gap, Queue
from backend_store.core.log.block import Draft, blocks_of
from backend_store.core.log.cursor import decode_cursor
from backend_store.model import QueueConfig
from push.delivery.fanout import Fanout, cursor_after
from push.delivery.stream_reader import Others
from push.encoding.deliveries import visible
from push.session.subscriptions import StreamSubscription
from tests.support.node_world import TENANT, NodeWorld

KEYS = 12


class Reader:
    def __init__(self) -> None:
        self.writable = True
        self.writes: list[bytes] = []
        self.gaps: list[Gap] = []

    @property
    def seen(self) -> list[Any]:
        return [body for data in self.writes for line in data.splitlines() for body in json.loads(line)[1]]

    @property
    def cursor(self) -> str:
        return str(json.loads(self.writes[-1].splitlines()[-1])[0])

    def of(self, key: int) -> list[int]:
        return [number for one, number in self.seen if one == key]

    def write(self, data: bytes) -> None:
        assert self.writable
        self.writes.append(data)

    def delivered(self, queue: Queue, messages: int, size: int, batch: object = None) -> None:
        """Counted elsewhere."""

    def tell_gap(self, number: int, gap: Gap) -> None:
        self.gaps.append(gap)

    def tell_reset(self, number: int, cursor: str) -> None:
        raise AssertionError("the log is the same")

    def flush_soon(self) -> None:
        """A stream writes at once."""

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        """A stream has no leases."""


class Setup:
    def __init__(self, **config: Any) -> None:
        self.world = NodeWorld()
        self.queue = self.world.make(
            "s", QueueConfig(kind="stream", **{"ordering": "strict", "retention_ms": None, **config})
        )
        self.framed = 0
        self.fanout = Fanout(self.queue, self.world.loop, {"json": self._frame}, lambda count: None)
        self._numbers = 0

    def _frame(self, chunk: Chunk, start: int, stop: int, number: int, others: Others) -> bytes:
        self.framed += 1
        bodies = [json.loads(chunk.messages.bodies[n]) for n in visible(chunk, start, stop)]
        return json.dumps([cursor_after(chunk, stop, others), bodies]).encode() + b"\n"

    def round(self) -> None:
        """One message of every key."""
        rows = [Draft(0, json.dumps([key, self._numbers]).encode(), {"key": f"k{key}"}) for key in range(KEYS)]
        self._numbers += 1
        self.world.tell(partial(self.queue.publish, blocks_of(rows).blocks, lambda done: None))
        self.world.pass_time(100)

    def resize(self, partitions: int) -> None:
        wanted = msgspec.structs.replace(self.queue.config, partitions=partitions)
        self.world.do(self.world.store.update_queue(TENANT, "s", wanted, self.queue.definition.version))
        self.world.pass_time(3000)

    def read(self, wanted: Any, *, credit: int | None = None) -> tuple[StreamSubscription, Reader]:
        reader = Reader()
        start = self.queue.parts.start(wanted)
        sub = StreamSubscription(reader, 1, self.queue, start=start, credit=credit, key="json")
        self.fanout.start(sub, reader)
        self.world.settle()
        return sub, reader


@pytest.fixture
def setup() -> Iterator[Setup]:
    setup = Setup(partitions=3)
    yield setup
    setup.world.close()


def test_live_readers_share_the_frames_of_every_partition(setup: Setup) -> None:
    readers = [setup.read("latest")[1] for _ in range(5)]
    setup.round()
    assert setup.framed == 3, "one a partition, whoever reads"
    assert all(len(reader.seen) == KEYS for reader in readers)
    for number in range(3):
        assert len({id(reader.writes[number]) for reader in readers}) == 1


def test_a_cursor_names_all_partitions_and_nothing_is_missed_or_doubled_behind_it(setup: Setup) -> None:
    _, reader = setup.read("latest")
    setup.round()
    setup.round()
    assert set(decode_cursor(reader.cursor).positions) == {0, 1, 2}
    _, again = setup.read({"cursor": json.loads(reader.writes[1])[0]})
    assert sorted(again.seen) == sorted(body for data in reader.writes[2:] for body in json.loads(data)[1])


def test_who_stops_reading_misses_nothing_in_any_partition(setup: Setup) -> None:
    sub, slow = setup.read("latest")
    _, fast = setup.read("latest")
    slow.writable = False
    setup.round()
    setup.round()
    assert slow.seen == []
    slow.writable = True
    setup.fanout.start(sub, slow)
    setup.world.pass_time(10)
    assert sub.live and all(slow.of(key) == fast.of(key) == [0, 1] for key in range(KEYS))


def test_live_readers_stay_live_when_partitions_come_and_get_what_comes_there(setup: Setup) -> None:
    sub, reader = setup.read("latest")
    setup.round()
    setup.resize(6)
    assert sub.live
    setup.round()
    assert sub.live and all(reader.of(key) == [0, 1] for key in range(KEYS))
    assert set(decode_cursor(reader.cursor).positions) == set(range(6))


def test_who_replays_a_stream_that_grew_gets_each_key_in_its_order(setup: Setup) -> None:
    for partitions in (3, 5, 2, 6, 1):
        setup.resize(partitions)
        setup.round()
    for credit in (None, 1000):
        _, reader = setup.read("earliest", credit=credit)
        setup.world.pass_time(100)
        assert all(reader.of(key) == [0, 1, 2, 3, 4] for key in range(KEYS)), credit


def test_a_reader_is_told_by_partition_what_was_dropped_before_it_came(setup: Setup) -> None:
    sub, reader = setup.read("latest")
    reader.writable = False
    setup.round()
    setup.world.do(setup.queue.purge("p"))
    reader.writable = True
    setup.fanout.start(sub, reader)
    setup.world.pass_time(10)
    setup.round()
    assert {gap.partition for gap in reader.gaps} == {0, 1, 2}
    assert all(reader.of(key) == [1] for key in range(KEYS))


def test_a_reader_is_told_what_it_missed_of_a_partition_that_has_gone(setup: Setup) -> None:
    setup.round()
    cursor = setup.queue.parts.start("earliest").cursor
    sub, reader = setup.read("earliest", credit=1)
    setup.resize(1)
    setup.world.do(setup.queue.purge("p"))
    setup.world.pass_time(5000)
    assert [part.number for part in setup.queue.parts.all] == [0]
    setup.fanout.allow(sub, 100, reader)
    setup.world.pass_time(10)
    assert sub.live and {gap.partition for gap in reader.gaps} >= {1, 2}
    resumed = setup.queue.parts.start({"cursor": cursor})
    assert resumed.outcome == "gap" and {gap.partition for gap in resumed.gaps} == {1, 2, None}


def test_the_limit_of_a_stream_is_kept_over_all_partitions_by_its_oldest_messages() -> None:
    setup = Setup(partitions=3, max_messages=2 * KEYS, overflow="drop_oldest")
    for _ in range(6):
        setup.round()
        setup.world.pass_time(1000)
    stats = setup.queue.stats()
    assert stats.ready == 2 * KEYS
    _, reader = setup.read("earliest")
    setup.world.pass_time(10)
    assert all(reader.of(key) == [4, 5] for key in range(KEYS))
    setup.world.close()


def test_bytes_are_kept_over_all_partitions_and_the_last_chunk_stays() -> None:
    setup = Setup(partitions=3, retention_bytes=1)
    for _ in range(4):
        setup.round()
        setup.world.pass_time(1000)
    _, reader = setup.read("earliest")
    setup.world.pass_time(10)
    assert 0 < len(reader.seen) < KEYS and {number for _, number in reader.seen} == {3}
    setup.world.close()
