"""A view hands out what is chosen, as far as it is still there."""

from __future__ import annotations

from backend_store.core.log.chunk import Chunk
from tests.support.queues import ack, counts, draft, drained, publish, queue, receipts, settle, took
from tests.support.world import VISIBILITY_MS, Consumer, World


class Broken(Consumer):
    """One that fails when it is told that leases ended."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        raise AssertionError("a fault of ours")


def held_by_two() -> tuple[World, Consumer]:
    """A message with a consumer that fails, and one with another."""
    world, consumer = queue(), Consumer()
    publish(world, draft("a"))
    publish(world, draft("b"))
    for holder in (Broken(), consumer):
        assert world.main.take(1, holder, VISIBILITY_MS) is not None
    return world, consumer


def test_a_consumer_that_fails_keeps_no_other_lease_from_its_end() -> None:
    """The leases behind it were never looked at again: their messages were in flight until the next start."""
    world, consumer = held_by_two()
    world.pass_time(VISIBILITY_MS)
    world.settle_down()
    assert counts(world) == (2, 0, 0) and len(consumer.lost_receipts) == 1


def test_a_consumer_that_fails_keeps_no_other_from_hearing_of_a_purge() -> None:
    world, consumer = held_by_two()
    world.purge()
    world.settle_down()
    assert counts(world) == (0, 0, 0) and len(consumer.lost_receipts) == 1


def test_a_consumer_that_fails_keeps_no_message_from_the_queue_that_is_to_have_it() -> None:
    world, consumer = held_by_two()
    world.main.free_all(world.main.core.policy)
    assert len(consumer.lost_receipts) == 1


def chosen() -> tuple[World, Chunk]:
    """Two messages, and their chunk as somebody read it who means to move them."""
    world = queue()
    publish(world, draft("a"), draft("b"))
    chunk = world.partition.read(0)
    assert chunk is not None
    return world, chunk


def claimed(world: World, chunk: Chunk) -> int:
    lease = world.main.claim(chunk, 0b11, Consumer(), 60_000)
    return 0 if lease is None else lease.bits


def test_chosen_messages_are_leased_though_they_are_not_the_next() -> None:
    world, chunk = chosen()
    assert claimed(world, chunk) == 0b11 and counts(world) == (0, 2, 0)


def test_what_was_acked_since_it_was_chosen_is_left_alone() -> None:
    world, chunk = chosen()
    ack(world, took(world))
    assert claimed(world, chunk) == 0 and counts(world) == (0, 0, 0)
    assert world.partition.state.live == 0


def test_what_somebody_got_since_it_was_chosen_is_left_to_them() -> None:
    world, chunk = chosen()
    lease = took(world, 1)
    assert claimed(world, chunk) == 0b10
    assert settle(world, receipts(lease)) == [True]


def test_what_was_purged_since_it_was_chosen_is_left_alone() -> None:
    world, chunk = chosen()
    world.purge()
    world.settle_down()
    assert claimed(world, chunk) == 0 and counts(world) == (0, 0, 0)
    publish(world, draft("c"))
    assert drained(world) == ["c"]


def test_what_was_purged_while_somebody_tried_to_send_it_does_not_die_of_it() -> None:
    world, _ = chosen()
    lease = took(world)
    world.purge()
    world.settle_down()
    assert lease is not None
    world.main.undeliverable(lease)
    world.settle_down()
    assert counts(world) == (0, 0, 0) and world.partition.state.ended == {}
