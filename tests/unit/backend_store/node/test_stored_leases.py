"""Leases that outlive a crash: nobody else gets their messages, and the receipts go on to work."""

from __future__ import annotations

from backend_store.storage.engine import Table
from tests.support.queues import (
    ack,
    column,
    counts,
    crashed,
    draft,
    drained,
    nack,
    publish,
    queue,
    receipts,
    rows,
    settle,
    texts,
    took,
)
from tests.support.world import Consumer, World


def stored(*bodies: str, **settings: object) -> World:
    world = queue(lease_mode="replicated", **settings)
    publish(world, *map(draft, bodies or ("a", "b")))
    return world


def test_the_bytes_leave_once_the_lease_is_on_the_disk() -> None:
    world, consumer = stored(), Consumer()
    lease = world.take(2, consumer)
    assert lease is not None and not lease.durable and consumer.sendable_calls == 0
    world.commit()
    assert lease.durable and consumer.sendable_calls == 1 and rows(world, Table.LEASES) == 1


def test_after_a_crash_the_holder_still_holds() -> None:
    world = stored()
    lease = took(world)
    world.settle_down()
    crashed(world)
    assert counts(world) == (0, 2, 0) and took(world) is None
    assert settle(world, receipts(lease)) == [True, True]
    assert rows(world, Table.LOG, Table.LEASES, Table.MARKS) == 0


def test_a_lease_that_was_not_on_the_disk_never_was() -> None:
    world = stored()
    lease = took(world)
    crashed(world)
    assert lease is not None and not lease.durable
    assert counts(world) == (2, 0, 0) and texts(took(world)) == ["a", "b"]


def test_a_lease_ends_at_its_time_whatever_happened_meanwhile() -> None:
    world = stored()
    took(world, visibility_ms=1000)
    world.settle_down()
    crashed(world)
    wakeup_ms = world.partition.next_wakeup_ms()
    assert wakeup_ms is not None and 990 <= wakeup_ms - world.now_ms <= 1000
    world.pass_time(1000)
    world.settle_down()
    lease = took(world)
    assert texts(lease) == ["a", "b"] and lease is not None and lease.attempt_of(0) == 2


def test_an_extension_holds_once_it_is_durable() -> None:
    world = stored()
    lease = took(world, visibility_ms=1000)
    world.settle_down()
    assert world.extend(*receipts(lease), visibility_ms=60_000) == [True, True]
    crashed(world)
    world.pass_time(30_000)
    assert counts(world) == (0, 2, 0)


def test_what_was_acked_before_the_crash_stays_acked() -> None:
    world = stored()
    lease = took(world)
    world.settle_down()
    first, second = receipts(lease)
    assert settle(world, [first]) == [True]
    crashed(world)
    assert counts(world) == (0, 1, 0)
    assert settle(world, [second, first]) == [True, False]


def test_what_was_given_back_before_the_crash_belongs_to_nobody() -> None:
    world = stored()
    lease = took(world)
    world.settle_down()
    given = receipts(lease)
    assert world.nack(given[0]) == [True]
    crashed(world)
    assert counts(world) == (1, 1, 0) and texts(took(world)) == ["a"]


def test_the_next_holder_of_a_message_keeps_it_in_a_crash_not_the_one_that_gave_it_back() -> None:
    world = stored()
    first = took(world)
    world.settle_down()
    assert world.nack(receipts(first)[0]) == [True]
    second = took(world)
    world.settle_down()
    crashed(world)
    assert counts(world) == (0, 2, 0)
    assert settle(world, receipts(second)) == [True]
    assert settle(world, receipts(first)) == [True], "it still held the other one"


def test_the_part_of_a_lease_that_ran_out_is_free_after_a_crash() -> None:
    world = stored()
    lease = took(world, visibility_ms=1000)
    world.settle_down()
    world.extend(receipts(lease)[1], visibility_ms=60_000)
    world.pass_time(1000)
    world.settle_down()
    crashed(world)
    assert counts(world) == (1, 1, 0)


def test_a_lease_whose_bytes_never_left_leaves_no_row() -> None:
    world = stored()
    lease = took(world)
    world.settle_down()
    assert lease is not None
    world.main.unsent(lease)
    world.settle_down()
    assert rows(world, Table.LEASES) == 0
    again = took(world)
    assert again is not None and again.attempt_of(0) == 1


def test_every_end_of_a_lease_takes_its_row_along() -> None:
    world = stored("a", "b", "c", max_attempts=1)
    nack(world, took(world, 1))
    ack(world, took(world, 1))
    took(world, 1, visibility_ms=100)
    world.pass_time(100)
    world.settle_down()
    assert rows(world, Table.LEASES) == 0 and counts(world) == (0, 0, 0)


def test_a_lease_of_a_higher_priority_is_found_again_in_its_lane() -> None:
    world = queue(lease_mode="replicated", priorities=3)
    publish(world, draft("a", priority=2), draft("b", priority=2, due_ms=world.now_ms + 10))
    world.pass_time(10)
    leases = [took(world, 1), took(world, 1)]
    world.settle_down()
    crashed(world)
    assert counts(world) == (0, 2, 0)
    assert [settle(world, receipts(lease)) for lease in leases] == [[True], [True]]


def test_a_key_is_still_its_holders_after_a_crash() -> None:
    world = queue(lease_mode="replicated", ordering="strict")
    publish(world, draft("a", key="k"))
    publish(world, draft("b", key="k"), draft("c", key="other"))
    lease = took(world, 1)
    world.settle_down()
    crashed(world)
    other = took(world)
    assert texts(lease) == ["a"] and texts(other) == ["c"] and column(other, "key") == ["other"]
    settle(world, receipts(lease))
    assert drained(world) == ["b"]


def test_a_purge_tells_who_holds_messages_and_nobody_who_has_not_got_them() -> None:
    world, holder, waiting = queue(lease_mode="replicated"), Consumer(), Consumer()
    publish(world, draft("a"), draft("b"))
    held = world.leased(1, holder)
    world.settle_down()
    given = receipts(held)
    world.purge()
    world.take(1, waiting)
    world.settle_down()
    assert holder.lost_receipts == given and waiting.lost_receipts == []


def test_a_purge_leaves_no_row_of_a_lease_that_was_taken_while_it_was_on_its_way() -> None:
    world = queue(lease_mode="replicated")
    publish(world, draft("a"), draft("b"))
    world.purge()
    world.committer.prepare()
    assert texts(took(world, 1)) == ["a"]
    world.committer.land()
    world.settle_down()
    assert rows(world, Table.LEASES) == 0
    crashed(world)
    assert counts(world) == (0, 0, 0)
