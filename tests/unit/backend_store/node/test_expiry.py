"""Time to live: nobody gets what has expired, and it goes by itself within a second."""

from __future__ import annotations

import pytest

from backend_store.core.leases.receipts import by_token
from backend_store.core.log.sublogs import OUTBOX
from backend_store.node.publishing.placement import EXPIRY_STEP_MS
from backend_store.node.timers import expiry
from backend_store.storage.engine import Table
from tests.support.queues import (
    DEAD,
    ack,
    counts,
    crashed,
    draft,
    drained,
    nack,
    present,
    publish,
    queue,
    receipts,
    rows,
    texts,
    time_passes,
    took,
)
from tests.support.world import World


def expiring(*lives_ms: int, **settings: object) -> World:
    """Messages `0`, `1`, … that live so long; 0 for ever."""
    world = queue(**settings)
    publish(
        world,
        *[draft(str(n), expires_ms=world.now_ms + ms if ms else 0) for n, ms in enumerate(lives_ms)],
    )
    return world


def test_nobody_gets_what_has_expired_even_before_it_was_swept() -> None:
    world = expiring(100, 0)
    world.now_ms += 100
    assert texts(took(world)) == ["1"]
    world.settle_down()
    assert world.partition.state.ended == {"expired": 1}


def test_what_expired_goes_by_itself_within_its_step() -> None:
    world = expiring(100)
    world.pass_time(99)
    world.settle_down()
    assert counts(world) == (1, 0, 0)
    time_passes(world, 1 + EXPIRY_STEP_MS)
    assert counts(world) == (0, 0, 0) and rows(world, Table.LOG, Table.MARKS, Table.EXPIRY) == 0


def test_the_queue_asks_to_be_woken_when_something_expires() -> None:
    world = expiring(1000, 100)
    wakeup_ms = world.partition.next_wakeup_ms()
    assert wakeup_ms is not None and 100 <= wakeup_ms - (world.now_ms) <= 100 + EXPIRY_STEP_MS


def test_a_look_at_the_clock_while_the_first_expiring_message_is_on_its_way_does_not_forget_it() -> None:
    world = queue()
    world.publish_drafts([draft("a", expires_ms=world.now_ms + 100)])
    world.committer.prepare()
    world.pass_time(1)
    assert world.partition.next_wakeup_ms() is None
    world.committer.land()
    time_passes(world, 500)
    assert counts(world) == (0, 0, 0)


def test_messages_of_one_chunk_expire_each_in_its_time() -> None:
    world = expiring(100, 0, 700, 400)
    seen = []
    for _ in range(5):
        time_passes(world, 250)
        time_passes(world, 10)
        seen.append(counts(world)[0])
    assert seen == [3, 2, 1, 1, 1]
    assert drained(world) == ["1"]


def test_a_message_in_flight_may_still_be_acked_when_its_time_is_over() -> None:
    world = expiring(100)
    lease = took(world)
    time_passes(world, 500)
    assert counts(world) == (0, 1, 0)
    assert ack(world, lease) == [True] and world.partition.state.ended == {}


def test_what_comes_back_after_its_time_is_gone_at_once() -> None:
    world = expiring(100)
    lease = took(world)
    time_passes(world, 500)
    assert nack(world, lease) == [True]
    assert counts(world) == (0, 0, 0) and world.partition.state.ended == {"expired": 1}


def test_what_comes_back_just_before_its_time_with_a_slow_commit_goes_all_the_same() -> None:
    world = expiring(1_000)
    lease = took(world)
    world.pass_time(995)
    world.main.give_back(by_token(receipts(lease)), 0, None, lambda _: None)
    world.committer.prepare()
    world.pass_time(500)
    world.committer.land()
    assert goes_by_itself(world)


def test_what_was_never_sent_before_its_time_was_over_goes_by_itself() -> None:
    world = expiring(1_000)
    lease = took(world)
    time_passes(world, 1_500)
    assert lease is not None
    world.main.unsent(lease)
    assert goes_by_itself(world)


def goes_by_itself(world: World) -> bool:
    """Whether the queue asks to be woken, and the message is gone within a second."""
    end_ms = world.now_ms + 1_000
    while (wakeup_ms := world.partition.next_wakeup_ms()) is not None and wakeup_ms <= end_ms:
        time_passes(world, max(1, wakeup_ms - world.now_ms))
    return counts(world) == (0, 0, 0) and world.partition.state.ended == {"expired": 1}


def test_a_message_that_waits_for_its_retry_expires_too() -> None:
    world = expiring(300)
    nack(world, took(world), due_ms=world.now_ms + 10_000)
    time_passes(world, 500)
    assert counts(world) == (0, 0, 0)
    time_passes(world, 10_000)
    assert counts(world) == (0, 0, 0) and rows(world, Table.RETRY) == 0


def test_expired_messages_are_counted_and_not_kept() -> None:
    world = expiring(100)
    time_passes(world, 500)
    assert counts(world, DEAD) == (0, 0, 0) and world.partition.state.ended == {"expired": 1}


def test_expired_messages_go_to_a_dead_letter_queue_that_is_named() -> None:
    world = expiring(100, dead_letter_queue="graves")
    time_passes(world, 500)
    assert present(world, OUTBOX) == 1 and len(world.exported) == 1


@pytest.mark.parametrize("gap_ms", [0, 500])
def test_expiry_survives_a_crash(gap_ms: int) -> None:
    world = expiring(100)
    world.now_ms += gap_ms
    crashed(world)
    time_passes(world, 500)
    assert counts(world) == (0, 0, 0)


def test_a_crash_before_the_end_is_durable_brings_nothing_back_to_a_consumer() -> None:
    world = expiring(100)
    world.now_ms += 100
    assert took(world) is None
    crashed(world)
    assert counts(world) == (1, 0, 0) and took(world) is None
    world.settle_down()
    assert counts(world) == (0, 0, 0)


def test_a_message_that_was_in_flight_when_it_expired_is_gone_after_a_crash() -> None:
    world = expiring(100)
    took(world)
    time_passes(world, 500)
    crashed(world)
    assert took(world) is None
    world.settle_down()
    assert counts(world) == (0, 0, 0)


def test_what_expires_while_a_commit_takes_long_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "EXPIRING_BYTES_MAX", 1)
    world = queue()
    for number in range(5):
        publish(world, draft(str(number), expires_ms=world.now_ms + 100))
    for _ in range(20):
        world.pass_time(100)
    world.commit()
    assert world.partition.state.ended == {"expired": 1}, "the disk was slow: the others wait for it"
    for _ in range(20):
        time_passes(world, 100)
    assert world.partition.state.ended == {"expired": 5} and counts(world) == (0, 0, 0)
