"""The feeder deals ready messages out in turn, by credit, and never more than a fair share at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from backend_store.client import GroupQueue
from backend_store.core.leases.leases import Lease
from push.delivery.feeder import Feeder, feeder_of
from tests.support.streams import StreamWorld
from tests.support.world import VISIBILITY_MS, World, queue_of, receipts_by_seq


class Eater:
    """A consumer that notes what it is given."""

    def __init__(self, credit: int = 1000):
        self.visibility_ms = VISIBILITY_MS
        self.in_ring = False
        self.credit = credit
        self.leases: list[Lease] = []
        self.seqs: list[int] = []

    def wants(self) -> int:
        return self.credit - len(self.seqs)

    def deliver(self, lease: Lease) -> None:
        self.leases.append(lease)
        self.seqs += receipts_by_seq(lease)

    def released(self, count: int) -> None:
        """Its credit is what the test says."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """It would be told."""


class Broken(Eater):
    """One that fails at what it is asked or told, until it is mended."""

    def __init__(self, fails: str) -> None:
        super().__init__()
        self.fails = fails

    def wants(self) -> int:
        assert self.fails != "asked", "a fault of ours"
        return super().wants()

    def deliver(self, lease: Lease) -> None:
        assert self.fails != "told", "a fault of ours"
        super().deliver(lease)


class Setup:
    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.world = World()
        self.queue: Any = queue_of(self.world)
        self.feeder = Feeder(self.queue, loop)

    def add(self, *eaters: Eater) -> None:
        for eater in eaters:
            self.feeder.add(eater)

    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def setup() -> Iterator[Setup]:
    loop = asyncio.new_event_loop()
    yield Setup(loop)
    loop.close()


def test_what_is_ready_reaches_a_new_consumer_in_the_next_turn(setup: Setup) -> None:
    setup.world.stored(b"1", b"2")
    eater = Eater()
    setup.add(eater)
    assert eater.seqs == []
    setup.turn()
    assert eater.seqs == [0, 1]


@pytest.mark.parametrize("fails", ["asked", "told"])
def test_a_consumer_that_fails_keeps_no_message_from_the_others(setup: Setup, fails: str) -> None:
    """It stood first in line for good, and nobody behind it was given anything."""
    broken, others = Broken(fails), [Eater(2), Eater(2)]
    setup.add(broken, *others)
    setup.world.stored(b"1", b"2", b"3", b"4")
    setup.turn()
    assert sorted(seq for eater in others for seq in eater.seqs) == [0, 1, 2, 3] and not broken.seqs
    assert not broken.in_ring and setup.world.counts == (0, 4, 0)
    broken.fails = ""
    setup.add(broken)
    setup.world.stored(b"5")
    setup.turn()
    assert broken.seqs == [4]


def test_a_consumer_that_fails_is_not_counted_in_what_is_wanted(setup: Setup) -> None:
    broken, other = Broken("asked"), Eater(2)
    setup.add(broken, other)
    assert setup.feeder.wanted() == {VISIBILITY_MS: 2} and not broken.in_ring


def test_what_arrives_later_is_dealt_out_by_its_commit(setup: Setup) -> None:
    eater = Eater()
    setup.add(eater)
    setup.turn()
    setup.world.stored(b"1")
    assert eater.seqs == [0]


def test_consumers_share_what_is_there_evenly(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 200)
    eaters = [Eater() for _ in range(4)]
    setup.add(*eaters)
    setup.turn()
    shares = [len(eater.seqs) for eater in eaters]
    assert sum(shares) == 200 and max(shares) - min(shares) <= 64
    assert sorted(seq for eater in eaters for seq in eater.seqs) == list(range(200))


def test_messages_that_come_one_by_one_go_round(setup: Setup) -> None:
    eaters = [Eater() for _ in range(3)]
    setup.add(*eaters)
    setup.turn()
    for number in range(9):
        setup.world.stored(b"%d" % number)
    assert [len(eater.seqs) for eater in eaters] == [3, 3, 3]


def test_a_consumer_gets_no_more_than_its_credit_and_the_others_the_rest(setup: Setup) -> None:
    small, large = Eater(credit=3), Eater()
    setup.add(small, large)
    setup.turn()
    setup.world.stored(*[b"1"] * 50)
    assert (len(small.seqs), len(large.seqs)) == (3, 47)
    assert not small.in_ring


def test_a_consumer_whose_credit_came_back_gets_more_with_the_next_commit(setup: Setup) -> None:
    eater = Eater(credit=1)
    setup.add(eater)
    setup.turn()
    setup.world.stored(b"1", b"2")
    assert len(eater.seqs) == 1
    eater.credit = 2
    setup.feeder.line_up(eater)
    assert len(eater.seqs) == 1
    setup.world.settle_down()
    assert len(eater.seqs) == 2


def test_a_consumer_that_was_removed_gets_nothing(setup: Setup) -> None:
    eater, other = Eater(), Eater()
    setup.add(eater, other)
    setup.feeder.remove(eater)
    setup.feeder.remove(eater)
    setup.turn()
    setup.world.stored(*[b"1"] * 10)
    assert (len(eater.seqs), len(other.seqs)) == (0, 10)


def test_a_consumer_stands_in_line_once(setup: Setup) -> None:
    eater, other = Eater(), Eater()
    setup.add(eater, eater, other)
    setup.feeder.line_up(eater)
    assert len(setup.feeder._ring) == 2
    setup.turn()
    setup.world.stored(*[b"1"] * 10)
    assert sorted(eater.seqs + other.seqs) == list(range(10)) and other.seqs


def test_one_turn_gives_a_consumer_no_more_than_a_batch(setup: Setup) -> None:
    for _ in range(4):
        setup.world.stored(*[b"1"] * 60)
    eater = Eater()
    setup.add(eater)
    setup.turn()
    assert max(len(receipts_by_seq(lease)) for lease in eater.leases) <= 64
    assert len(eater.seqs) == 240


def test_what_comes_back_goes_to_who_has_credit(setup: Setup) -> None:
    first, second = Eater(credit=2), Eater(credit=0)
    setup.add(first)
    setup.turn()
    setup.world.stored(b"1", b"2")
    second.credit = 5
    setup.add(second)
    setup.turn()
    setup.world.main.give_back_lease(first.leases[0])
    setup.world.commit()
    assert second.seqs == first.seqs


def test_a_queue_has_one_feeder(setup: Setup) -> None:
    assert feeder_of(setup.queue, setup.loop) is feeder_of(setup.queue, setup.loop)


def test_one_that_is_refused_does_not_keep_the_one_that_is_at_it_waiting(loop: asyncio.AbstractEventLoop) -> None:
    """In a group with offsets one consumer has messages out, and it alone gets more."""
    world = StreamWorld()
    group = world.group()
    queue = GroupQueue(queue_of(world), group.group)
    feeder = Feeder(queue, loop)
    first, second = Eater(credit=2), Eater()
    world.stored(b"0", b"1", b"2", b"3")
    feeder.add(first)
    feeder.dispatch()
    feeder.add(second)
    first.credit = 4
    feeder.add(first)
    feeder.dispatch()
    assert (first.seqs, second.seqs) == ([0, 1, 2, 3], [])
    assert all(group.ack(*receipts_by_seq(first.leases[-1]).values()))
    world.stored(b"4")
    assert (len(first.seqs), len(second.seqs)) == (4, 1), "nothing is out any more"
