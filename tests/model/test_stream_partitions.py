"""Streams of several partitions, in lives drawn from a seed: they grow and shrink while readers of all kinds and groups
of both modes read them, and the process ends at any moment.

What must hold: every reader and every group gets every message, the messages of a key in their order, and what a group
has acked never comes again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from backend_store.client import Chunk, Gap, GroupQueue, Lease, Queue, list_groups, open_group, put_group
from backend_store.core.log.block import Draft, blocks_of
from backend_store.core.partitions import slots
from backend_store.model import Published, PushqError, QueueConfig
from push.delivery.fanout import Fanout, cursor_after
from push.delivery.stream_reader import Others, Reading, Tails
from push.encoding.deliveries import visible
from push.session.subscriptions import StreamSubscription
from push.transports.longpoll import _read as read_poll
from tests.support.node_world import TENANT, NodeWorld
from tests.support.seeds import is_gate, worlds
from tests.support.world import Consumer, receipts_by_seq

KEYS = [f"k{n}" for n in range(12)]
STEPS = 60
SEEDS = 10 if is_gate() else 30


class Order:
    """What somebody has seen: each key's numbers without a hole, in their order; after a crash some may come again."""

    def __init__(self, name: str):
        self.name = name
        self.last: dict[str, int] = defaultdict(lambda: -1)

    def see(self, body: Any, *, again: bool = False) -> None:
        key, number = body
        assert number <= self.last[key] + 1, f"{self.name}: {key} jumps from {self.last[key]} to {number}"
        assert again or number == self.last[key] + 1, f"{self.name}: {key} {number} comes after {self.last[key]}"
        self.last[key] = max(self.last[key], number)


class Reader:
    """A subscription without a group, which comes back by its cursor."""

    def __init__(self, story: Story, name: str, credit: int | None):
        self.story = story
        self.order = Order(name)
        self.credit = credit
        self.writable = True
        self.gaps: list[Gap] = []
        self.cursor: str | None = None
        self.begin()

    def begin(self) -> None:
        parts = self.story.queue.parts
        start = parts.start("earliest" if self.cursor is None else {"cursor": self.cursor})
        # A purge drops by place: a reader is told of it also where no message was left that it had not read.
        assert self.story.is_purged or (not start.gaps and start.outcome == "complete")
        self.cursor = start.cursor
        self.sub = StreamSubscription(self, 1, self.story.queue, start=start, credit=self.credit, key="json")
        self.story.fanout.start(self.sub, self)

    def write(self, data: bytes) -> None:
        for frame in data.splitlines():
            self.cursor, bodies = json.loads(frame)
            for body in bodies:
                self.order.see(body)

    def delivered(self, queue: Queue, messages: int, size: int, batch: object = None) -> None:
        """Counted elsewhere."""

    def tell_gap(self, number: int, gap: Gap) -> None:
        self.gaps.append(gap)

    def tell_reset(self, number: int, cursor: str) -> None:
        raise AssertionError("the log is the same")

    def flush_soon(self) -> None: ...
    def tell_lost(self, number: int, receipts: list[str]) -> None: ...


class Poller:
    """Asks now and then, with the cursor of the last answer."""

    def __init__(self, story: Story):
        self.story = story
        self.order = Order("poll")
        self.cursor = story.queue.parts.start("earliest").cursor

    def poll(self, limit: int) -> int:
        parts = self.story.queue.parts
        start = parts.start({"cursor": self.cursor})
        reading = Reading(start.places, start.epochs)
        found, unshown = read_poll(self.story.queue, Tails(parts), reading, limit, [])
        assert not unshown, "all of it can be shown"
        for message in found:
            self.order.see(json.loads(message)["body"])
        self.cursor = parts.cursor(reading.places)
        return len(found)


class Members:
    """The consumers of a group."""

    def __init__(self, story: Story, name: str, *, is_ordered: bool):
        self.story = story
        self.name = name
        self.is_ordered = is_ordered
        self.order = Order(name)
        self.places: dict[int, dict[int, tuple[str, int]]] = defaultdict(dict)
        """By partition and seq: what was delivered."""
        self.done: set[tuple[str, int]] = set()
        self.held: list[tuple[Lease, dict[int, str]]] = []
        self.consumers = [Consumer(), Consumer()]
        self.queue = story.group(name)

    def begin(self) -> None:
        self.held.clear()
        self.queue = self.story.group(self.name)

    def take(self, rng: Random, most: int) -> bool:
        lease = self.queue.take(most, rng.choice(self.consumers), 30_000)
        if lease is None:
            return False
        assert lease.chunk is not None
        receipts = receipts_by_seq(lease)
        bodies = {seq: json.loads(lease.chunk.messages.bodies[seq - lease.state.base]) for seq in receipts}
        for body in bodies.values():
            assert tuple(body) not in self.done, f"{self.name}: {body} was acked"
            if self.is_ordered:
                self.order.see(body, again=True)
        self.places[lease.state.partition] |= {seq: tuple(body) for seq, body in bodies.items()}
        self.held.append((lease, receipts))
        return True

    def ack(self, rng: Random) -> None:
        if not self.held:
            return
        lease, receipts = self.held.pop(0)
        if rng.random() < 0.2:
            self.story.queue.give_back(list(receipts.values()), 0, lambda done: None)
            self.held.clear()  # with offsets what lies behind it is taken back as well
            return
        self.settle(lease, receipts)

    def settle(self, lease: Lease, receipts: dict[int, str]) -> None:
        answers: list[Any] = []
        self.story.queue.settle(list(receipts.values()), answers.append)
        self.story.world.settle()
        there = self.places[lease.state.partition]
        for seq, verdict in zip(receipts, answers[0], strict=True):
            if verdict.ok and self.queue.mode == "leases":
                self.done.add(there[seq])
            elif verdict.ok:  # everything up to it is behind the group
                self.done |= {body for at, body in there.items() if at <= seq}


class Story:
    def __init__(self, seed: int):
        self.rng = rng = Random(seed)
        self.config = QueueConfig(
            kind="stream",
            ordering=rng.choice(["strict", "best_effort"]),
            partitions=rng.choice([1, 1, 3]),
            retention_ms=None,
            visibility_timeout_ms=30_000,
        )
        self.world = NodeWorld()
        self.is_purged = False
        self.counts: dict[str, int] = defaultdict(int)
        self.readers: list[Reader] = []
        self.members: list[Members] = []
        self.made: dict[str, int] = {}
        self.world.make("s", self.config)
        self._open()
        self.poller = Poller(self)

    def _open(self) -> None:
        self.queue: Queue = self.world.store.queue(TENANT, "s")
        self.fanout = Fanout(self.queue, self.world.loop, {"json": self._frame}, lambda count: None)

    def _frame(self, chunk: Chunk, start: int, stop: int, number: int, others: Others) -> bytes:
        bodies = [json.loads(chunk.messages.bodies[n]) for n in visible(chunk, start, stop)]
        return json.dumps([cursor_after(chunk, stop, others), bodies]).encode() + b"\n"

    # ------------------------------------------------------------------------------------------------------- steps

    def publish(self) -> None:
        rows = []
        for key in self.rng.choices(KEYS, k=self.rng.randint(1, 9)):
            rows.append(Draft(0, json.dumps([key, self.counts[key]]).encode(), {"key": key}))
            self.counts[key] += 1
        answers: list[Published | PushqError] = []
        self.world.tell(partial(self.queue.publish, blocks_of(rows).blocks, answers.append))
        if self.rng.random() < 0.3:
            self.world.settle()
        self._answers.append(answers)

    _answers: list[list[Published | PushqError]]

    def resize(self) -> None:
        self.resize_to(self.rng.choice([1, 2, 3, 4, 5]))

    def resize_to(self, partitions: int) -> None:
        wanted = msgspec.structs.replace(self.queue.config, partitions=partitions)
        if wanted == self.queue.config:
            return
        changed = self.world.start(self.world.store.update_queue(TENANT, "s", wanted, self.queue.definition.version))
        assert changed.done() and changed.result() is not None

    def read(self) -> None:
        if len(self.readers) < 5:
            number = len(self.readers)
            self.readers.append(Reader(self, f"reader {number}", self.rng.choice([None, None, 3])))

    def trouble_reader(self) -> None:
        if not self.readers:
            return
        reader = self.rng.choice(self.readers)
        what = self.rng.random()
        if what < 0.4:
            reader.writable = not reader.writable
            if reader.writable:
                self.fanout.start(reader.sub, reader)
        elif what < 0.7 and reader.credit is not None:
            self.fanout.allow(reader.sub, self.rng.randint(1, 5), reader)
        else:
            self.fanout.stop(reader.sub)
            reader.begin()

    def group(self, name: str) -> GroupQueue:
        found: list[Any] = []
        self.world.tell(partial(open_group, self.queue, name, "earliest", found.append))
        self.world.settle()
        assert isinstance(found[0], GroupQueue), found
        return found[0]

    def make_group(self) -> None:
        mode: Any = self.rng.choice(["offsets", "leases"])
        name = f"{mode}{len(self.members)}"
        if len(self.members) < 3:
            made: list[Any] = []
            self.world.tell(partial(put_group, self.queue, name, "earliest", mode, made.append))
            self.world.settle()
            assert not isinstance(made[0], PushqError), made
            is_ordered = mode == "offsets" or self.config.ordering == "strict"
            self.members.append(Members(self, name, is_ordered=is_ordered))

    def consume(self) -> None:
        for members in self.members:
            if self.rng.random() < 0.6:
                members.take(self.rng, self.rng.randint(1, 10))
            if self.rng.random() < 0.5:
                members.ack(self.rng)

    def crash(self) -> None:
        self.settle_publishes()
        if self.rng.random() < 0.5:
            self.world.hold(self.rng.randint(0, 4))
            self.world.pass_time(self.rng.randint(0, 120))
        self.world.crash(landed=self.rng.random() < 0.5)
        self._open()
        for reader in self.readers:
            reader.writable = True
            reader.begin()
        for members in self.members:
            members.begin()

    def settle_publishes(self) -> None:
        """Nothing is on the way: a crash leaves no message that may be there or not."""
        for _ in range(200):
            if all(self._answers):
                break
            self.world.pass_time(10)
        assert all(isinstance(answers[0], Published) for answers in self._answers), self._answers
        self._answers = []

    # --------------------------------------------------------------------------------------------------------- a life

    def live(self) -> None:
        self._answers = []
        steps: list[Callable[[], Any]] = [
            *[self.publish] * 6, *[self.consume] * 5, *[self.trouble_reader] * 2, *[self.read] * 2, self.resize,
            self.make_group, lambda: self.poller.poll(self.rng.randint(1, 20)),
        ]  # fmt: skip
        for _ in range(STEPS):
            self.rng.choice(steps)()
            if self.rng.random() < 0.4:
                self.world.pass_time(self.rng.choice([0, 1, 5, 60]))
            if self.rng.random() < 0.04:
                self.crash()
        self.rest()
        self.come_again()

    def come_again(self) -> None:
        """All but one partition go when nothing is in them; others come under their numbers, and everybody goes on."""
        for members in self.members:
            self.finish(members)
        self.resize_to(1)
        self.world.pass_time(2000)
        self.world.do(self.queue.purge("p"))
        self.is_purged = True
        self.world.pass_time(10_000)
        assert [partition.index for partition in self.queue._partitions.all] == [0]
        if self.rng.random() < 0.3:
            self.crash()
        self.resize_to(4)
        for _ in range(5):
            self.publish()
            self.world.pass_time(self.rng.choice([1, 100]))
        self.rest()
        for members in self.members:
            self.finish(members)
        assert [partition.index for partition in self.queue._partitions.all] == [0, 1, 2, 3]

    def rest(self) -> None:
        self.settle_publishes()
        self.world.pass_time(3000)
        for reader in self.readers:
            reader.writable = True
            if reader.credit is not None:
                self.fanout.allow(reader.sub, 10_000, reader)
            self.fanout.start(reader.sub, reader)
        while self.poller.poll(50):
            pass
        self.world.pass_time(500)
        wanted = {key: count - 1 for key, count in self.counts.items() if count}
        for order in (self.poller.order, *(reader.order for reader in self.readers)):
            assert {key: last for key, last in order.last.items() if last >= 0} == wanted, order.name
        assert all(reader.sub.live and not reader.gaps for reader in self.readers)

    def finish(self, members: Members) -> None:
        self.world.pass_time(40_000)  # what was held and forgotten comes again
        members.held.clear()
        every = {(key, number) for key, count in self.counts.items() for number in range(count)}
        lag = {info.name: sum(part.lag for part in info.lag) for info in list_groups(self.queue)}
        assert lag[members.name] == len(every - members.done), members.name
        rng = Random(1)
        for _ in range(4000):
            if members.take(rng, 64):
                members.settle(*members.held.pop(0))
            elif members.done == every:
                break
            else:
                self.world.pass_time(100)
        assert members.done == every, (members.name, sorted(every - members.done))
        [info] = [info for info in list_groups(self.queue) if info.name == members.name]
        assert all(part.lag == 0 for part in info.lag), info


@pytest.mark.parametrize("seed", worlds(SEEDS))
def test_nobody_misses_anything_while_a_stream_changes_its_partitions(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bigger moves make a plan shorter; every third life has those of a real one.
    monkeypatch.setattr(slots, "MOVE_SLOTS_MAX", slots.MOVE_SLOTS_MAX if seed % 3 == 0 else 40)
    story = Story(seed)
    try:
        story.live()
    finally:
        story.world.close()
