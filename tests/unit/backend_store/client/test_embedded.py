"""Queues of an embedded store: verdicts in the order of receipts, exact counts."""

from __future__ import annotations

from typing import Any

from backend_store.model import Verdict
from tests.support.world import Consumer, World, queue_of, receipts_by_seq


def test_verdicts_stand_in_the_order_of_the_receipts() -> None:
    world = World()
    world.stored(*[b"1"] * 4)
    a, b, c, _ = receipts_by_seq(world.leased(4)).values()
    world.ack(b)
    answers: list[Any] = []
    queue_of(world).settle([c, "forged", b, a, c, a[:-2] + "xx"], answers.append)
    world.commit()
    ok, stale = Verdict(True), Verdict(False, "stale-receipt")
    assert answers == [[ok, stale, ok, ok, ok, stale]]


def test_counts_are_exact_and_of_now() -> None:
    world = World()
    queue = queue_of(world)
    world.stored(*[b"1"] * 10)
    world.now_ms += 5000
    first, second, *_ = receipts_by_seq(world.leased(4, Consumer())).values()
    world.ack(first)
    world.nack(second, due_ms=world.now_ms + 1000)
    stats = queue.stats()
    assert (stats.ready, stats.in_flight, stats.delayed) == (6, 2, 1)
    assert (stats.published_total, stats.acked_total, stats.oldest_age_ms) == (10, 1, 5000)
    assert stats.bytes == -(-world.partition.state.live_bytes * 9 // 10) > 0, "what was acked counts no longer"


def test_an_empty_queue_has_no_age_and_no_bytes() -> None:
    world = World()
    world.stored(b"1")
    world.ack(*receipts_by_seq(world.leased()).values())
    world.now_ms += 5000
    stats = queue_of(world).stats()
    assert (stats.ready, stats.oldest_age_ms, stats.bytes) == (0, 0, 0)


def test_a_delay_is_counted_from_now() -> None:
    world = World()
    world.stored(b"1")
    answers: list[Any] = []
    queue_of(world).give_back(list(receipts_by_seq(world.leased()).values()), 500, answers.append)
    world.commit()
    assert answers == [[Verdict(True)]]
    assert world.partition.next_wakeup_ms() == world.now_ms + 500
