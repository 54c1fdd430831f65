"""A commit is on the disk before its partition knows: whoever looks in between, at every order, strands nothing.

Two commits of a producer (asked for, prepared, durable, taken in) and the steps of a consumer are interleaved in all
ways, which kinds of queues share among each other in the gate. Nobody crashes and no lease runs out, so every message
comes exactly once, or expires, and nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from typing import Any, NamedTuple

import pytest

from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import by_token
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Draft, blocks_of
from backend_store.core.log.sublogs import VIEW_LATE, VIEW_MAIN
from backend_store.model import QueueConfig, Stamp
from backend_store.node.views.view import View
from tests.support.queues import draft
from tests.support.seeds import is_gate
from tests.support.semantics_seen import leftovers
from tests.support.streams import StreamWorld
from tests.support.world import VISIBILITY_MS, Consumer, World, receipts_by_seq

WINDOW_MS = 50
STEP_MS = 300
"""How much time passes at once: longer than what expires is looked at in one go."""
COMMITS = 2
END_MS = 10_000
SHARES = 4 if is_gate() else 1
"""Neighbouring cases divide the orders among so many of them; together they see each order several times."""
TICKS_MAX = 3
"""Looks of a timer at one moment: a queue that waits for its commit asks again at once."""

Published = Callable[[int, int], Sequence[Draft]]
"""The messages of a commit, by its number and the time."""


class Case(NamedTuple):
    name: str
    published: Published
    settings: dict[str, Any]
    views: tuple[int, ...] = (VIEW_MAIN,)


class Apart:
    """A queue whose commits reach the disk, and its memory, when the test says so. Its timer rings when it asked."""

    def __init__(self, case: Case):
        self.case = case
        self.world = self.made()
        self.world.partition.on_deadline = lambda _, at_ms: self.arm(at_ms)
        self.commits = 0
        self.timer_ms: int | None = None
        self.consumer = Consumer()
        self.came: list[str] = []
        self.unacked: list[tuple[View, Lease]] = []

    def made(self) -> World:
        return World(config=QueueConfig(**self.case.settings))

    @property
    def views(self) -> list[View]:
        return [self.world.partition.view(number) for number in self.case.views]

    # ------------------------------------------------------------------------------------------------ the producer

    def publish(self) -> None:
        drafts = self.case.published(self.commits, self.world.now_ms)
        self.commits += 1
        self.world.partition.publish(blocks_of(drafts).blocks, lambda _: None)

    def prepare(self) -> None:
        self.world.committer.prepare()

    def reach_the_disk(self) -> None:
        if self.world.committer.is_in_flight:
            self.world.committer.reach_the_disk()

    def take_in(self) -> None:
        if self.world.committer.is_in_flight:
            self.world.committer.land()

    # ------------------------------------------------------------------------------------------------ the consumer

    def take(self) -> None:
        for view in self.views:
            while (lease := view.take(8, self.consumer, VISIBILITY_MS)) is not None:
                assert lease.chunk is not None
                self.came += [lease.chunk.messages.bodies[index].decode() for index in indexes(lease.bits)]
                self.unacked.append((view, lease))

    def ack(self) -> None:
        unacked, self.unacked = self.unacked, []
        for view, lease in unacked:
            view.settle(by_token([*receipts_by_seq(lease).values()]), lambda _: None)

    def pass_time(self) -> None:
        self.world.now_ms += STEP_MS
        self.ring()

    # ---------------------------------------------------------------------------------------------------- the timer

    def arm(self, at_ms: int) -> None:
        self.timer_ms = at_ms if self.timer_ms is None else min(self.timer_ms, at_ms)

    def ring(self) -> None:
        for _ in range(TICKS_MAX):
            if self.timer_ms is None or self.timer_ms > self.world.now_ms:
                break
            self.timer_ms = None
            self.world.partition.tick(self.world.now_ms)
            if (next_ms := self.world.partition.next_wakeup_ms()) is not None:
                self.arm(next_ms)

    # ------------------------------------------------------------------------------------------------------ the end

    @property
    def expired(self) -> int:
        return self.world.partition.state.ended.get("expired", 0)

    def come_to_rest(self) -> None:
        """Everything lands, and time passes from timer to timer; then what is there is taken and acked."""
        self.take_in()
        self._wait()
        expired = self.expired
        self.take()
        while self.unacked:
            self.ack()
            self.world.settle_down()
            self.take()
        assert self.expired == expired, "what expired went only when somebody came for it"
        self._wait()

    def _wait(self) -> None:
        end_ms = self.world.now_ms + END_MS
        self.world.settle_down()
        while self.timer_ms is not None and self.timer_ms <= end_ms:
            self.world.now_ms = max(self.world.now_ms, self.timer_ms)
            self.ring()
            self.world.settle_down()

    def check(self) -> None:
        expected = [one.body.decode() for n in range(COMMITS) for one in self.case.published(n, 0)]
        assert len(set(self.came)) == len(self.came) == len(expected) - self.expired, self.came
        for view in self.views:
            assert (view.ready, view.core.in_flight, view.core.delayed) == (0, 0, 0)
        assert not leftovers(self.world.engine) and not self.world.quarantined


class ApartStream(Apart):
    """The same of a stream's group."""

    world: StreamWorld

    def made(self) -> StreamWorld:
        settings = {name: value for name, value in self.case.settings.items() if name != "mode"}
        world = StreamWorld(**settings)
        world.group("g", "earliest", self.case.settings["mode"])
        return world

    @property
    def views(self) -> list[View]:
        return [self.world.found().view]

    def check(self) -> None:
        expected = [one.body.decode() for n in range(COMMITS) for one in self.case.published(n, 0)]
        assert self.came == expected and self.world.found().lag == 0


PRODUCER = (Apart.publish, Apart.prepare, Apart.reach_the_disk, Apart.take_in) * COMMITS
CONSUMER = (Apart.take, Apart.pass_time, Apart.ack, Apart.take)


def orders() -> Iterator[list[Callable[[Apart], None]]]:
    """The producer's steps and the consumer's, interleaved in all ways."""
    count = len(PRODUCER) + len(CONSUMER)
    for places in combinations(range(count), len(CONSUMER)):
        producer, consumer = iter(PRODUCER), iter(CONSUMER)
        yield [next(consumer if place in places else producer) for place in range(count)]


def plain(commit: int, now_ms: int) -> list[Draft]:
    return [draft(f"{commit}{letter}") for letter in "ab"]


def keyed(commit: int, now_ms: int) -> list[Draft]:
    return [draft(f"{commit}{key}", key=key) for key in "ab"]


def ranked(commit: int, now_ms: int) -> list[Draft]:
    return [draft(f"{commit}{priority}", priority=priority) for priority in range(2)]


def later(commit: int, now_ms: int) -> list[Draft]:
    return [draft(f"{commit}{ms}", due_ms=now_ms + ms, id=f"{commit}{ms}") for ms in (20, 500)]


def dying(commit: int, now_ms: int) -> list[Draft]:
    return [draft(f"{commit}{ms}", expires_ms=now_ms + ms) for ms in (20, 500)]


def numbered(commit: int, now_ms: int) -> list[Draft]:
    """The second commit has what the first one's messages wait for."""
    return [draft(str(n), stamp=Stamp(0, "p", n)) for n in ((2, 4) if commit == 0 else (1, 3))]


def timed(commit: int, now_ms: int) -> list[Draft]:
    """The oldest has its turn at once, the others wait for theirs."""
    return [draft(f"{commit}{age}", stamp=Stamp((now_ms - age) * 1000, "p", 0)) for age in (0, 30, WINDOW_MS)]


SORTED = {"sort_window_ms": WINDOW_MS}
CASES = [
    Case("plain", plain, {}),
    Case("relaxed", plain, {"durability": "relaxed"}),
    Case("fair", keyed, {}),
    Case("strict", keyed, {"ordering": "strict"}),
    Case("priorities", ranked, {"priorities": 2}),
    Case("scheduled", later, {}),
    Case("expiring", dying, {}),
    Case("producer", numbered, {"sequencing": "producer", **SORTED}, (VIEW_MAIN, VIEW_LATE)),
    Case("producer, late first", numbered, {"sequencing": "producer", "late_messages": "head", **SORTED}),
    Case(
        "producer, strict, late first",
        numbered,
        {"sequencing": "producer", "ordering": "strict", "late_messages": "head", **SORTED},
    ),
    Case("clock", timed, {"sequencing": "clock", **SORTED}, (VIEW_MAIN, VIEW_LATE)),
    Case("clock, strict", timed, {"sequencing": "clock", "ordering": "strict", **SORTED}, (VIEW_MAIN, VIEW_LATE)),
    Case("clock, expiring", timed, {"sequencing": "clock", "message_ttl_ms": 200, **SORTED}, (VIEW_MAIN, VIEW_LATE)),
]
STREAMS = [
    Case("offsets", plain, {"mode": "offsets"}),
    Case("leases", plain, {"mode": "leases"}),
    Case("leases, strict", keyed, {"mode": "leases", "ordering": "strict"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_of_a_queue_is_stranded_by_a_look_at_a_disk_that_is_ahead(case: Case) -> None:
    everything_comes(lambda: Apart(case), CASES.index(case))


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case.name)
def test_nothing_of_a_group_is_stranded_by_a_look_at_a_disk_that_is_ahead(case: Case) -> None:
    everything_comes(lambda: ApartStream(case), STREAMS.index(case))


def everything_comes(make: Callable[[], Apart], number: int) -> None:
    """In the share of all orders that the case of that number has."""
    for steps in islice(orders(), number % SHARES, None, SHARES):
        queue = make()
        try:
            for step in steps:
                step(queue)
            queue.come_to_rest()
            queue.check()
        except AssertionError as error:
            raise AssertionError(f"{error}\nat {[step.__name__ for step in steps]}") from error
