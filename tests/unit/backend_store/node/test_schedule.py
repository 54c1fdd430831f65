"""Messages for later: never early, there in time, over restarts, and cancelled by id until then."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.client.search import places_of
from backend_store.core.log.chunk import blocks_of, message_id
from backend_store.core.log.sublogs import SCHEDULED
from backend_store.node.limits import DUE_ROWS_PER_TICK
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_range
from tests.support.queues import MAIN, ack, counts, crashed, draft, drained, publish, queue, rows, time_passes, took
from tests.support.world import REPLICA, START_MS, World


def scheduled(in_ms: int = 1000, **settings: Any) -> World:
    world = queue(**settings)
    publish(world, draft("later", due_ms=world.now_ms + in_ms, id="x"))
    return world


def cancel(world: World, message_id: str) -> bool:
    place = next(places_of(world.partition, MAIN, message_id))
    done = world.main.cancel(*place, lambda _: None)
    world.settle_down()
    return done


def test_a_scheduled_message_is_not_there_before_its_time_and_there_when_it_has_come() -> None:
    world = scheduled()
    world.pass_time(999)
    assert counts(world) == (0, 0, 1) and took(world) is None
    world.pass_time(1)
    assert counts(world) == (1, 0, 0) and drained(world) == ["later"]


def test_the_queue_asks_to_be_woken_for_what_was_just_scheduled() -> None:
    world, wakes = queue(), list[int]()
    world.partition.on_deadline = lambda _, at_ms: wakes.append(at_ms)
    due_ms = world.now_ms + 700
    publish(world, draft("later", due_ms=due_ms))
    assert wakes == [due_ms] and world.partition.next_wakeup_ms() == due_ms


def test_messages_come_in_the_order_of_their_times_not_of_their_publishes() -> None:
    world = queue()
    for body, in_ms in (("c", 300), ("a", 100), ("b", 200)):
        publish(world, draft(body, due_ms=world.now_ms + in_ms))
    world.pass_time(300)
    assert drained(world) == ["a", "b", "c"]


def test_a_message_that_is_due_when_its_commit_is_on_the_disk_and_nobody_was_told_is_not_forgotten() -> None:
    world, answers = scheduled(), list[Any]()
    world.partition.publish(blocks_of([draft("soon", due_ms=world.now_ms + 5)]).blocks, answers.append)
    assert world.committer.prepare()
    world.committer.reach_the_disk()
    world.pass_time(10)
    assert took(world) is None and counts(world) == (0, 0, 1)
    world.committer.land()
    assert len(answers) == 1 and counts(world) == (1, 0, 1)
    assert drained(world) == ["soon"]


def test_a_time_that_passed_while_the_commit_was_on_its_way_is_no_reason_to_wait() -> None:
    world = queue()
    publish(world, draft("first", due_ms=world.now_ms + 10))
    world.pass_time(50)
    assert publish(world, draft("late", due_ms=world.now_ms - 20)) == [1]
    assert counts(world) == (2, 0, 0) and drained(world) == ["first", "late"]


@pytest.mark.parametrize("later_ms", [0, 5000])
def test_a_schedule_survives_a_crash(later_ms: int) -> None:
    world = scheduled()
    world.now_ms += later_ms
    crashed(world)
    assert counts(world) == ((1, 0, 0) if later_ms else (0, 0, 1))
    world.pass_time(1000)
    assert drained(world) == ["later"]


def test_a_crash_does_not_bring_a_message_back_that_was_acked() -> None:
    world = queue()
    publish(world, *[draft(body, due_ms=world.now_ms + 10) for body in "ab"])
    world.pass_time(10)
    lease = took(world, 1)
    assert lease is not None and world.ack(lease.token + "00") == [True]
    crashed(world)
    assert drained(world) == ["b"]


def test_a_message_is_cancelled_by_its_id_until_its_time() -> None:
    world = scheduled()
    assert cancel(world, "x")
    assert counts(world) == (0, 0, 0) and world.partition.state.ended == {"cancelled": 1}
    time_passes(world, 1000)
    assert drained(world) == [] and rows(world, Table.LANES, Table.DUE, Table.BY_ID) == 0


def test_of_several_messages_for_one_time_only_the_cancelled_one_stays_away() -> None:
    world = queue()
    publish(world, *[draft(body, due_ms=world.now_ms + 100, id=body) for body in "abc"])
    assert cancel(world, "b")
    assert counts(world) == (0, 0, 2)
    crashed(world)
    assert counts(world) == (0, 0, 2)
    world.pass_time(100)
    assert drained(world) == ["a", "c"]


def test_a_cancelled_message_is_back_after_a_crash_only_if_that_was_not_durable() -> None:
    world = scheduled()
    assert world.main.cancel(SCHEDULED, 0, 0, lambda _: None)
    crashed(world)
    assert counts(world) == (0, 0, 1)
    assert cancel(world, "x")
    crashed(world)
    assert counts(world) == (0, 0, 0)


def test_a_message_in_flight_is_not_cancelled() -> None:
    world = scheduled()
    world.pass_time(1000)
    took(world)
    assert not cancel(world, "x")


def test_a_repeat_among_scheduled_messages_is_not_counted_and_cannot_be_cancelled_for_its_original() -> None:
    world = queue(dedupe="id")
    due_ms = world.now_ms + 100
    publish(world, draft("a", due_ms=due_ms, id="x"))
    publish(world, draft("again", due_ms=due_ms, id="x"), draft("b", due_ms=due_ms, id="y"))
    assert counts(world) == (0, 0, 2)
    assert cancel(world, "x"), "the id names the first one"
    world.pass_time(100)
    assert drained(world) == ["b"] and counts(world) == (0, 0, 0)


@pytest.mark.parametrize("one_commit", [False, True])
def test_an_id_that_was_scheduled_twice_cancels_the_one_that_is_left(one_commit: bool) -> None:
    world = scheduled(100)
    later = draft("second", due_ms=world.now_ms + 1000, id="x")
    if not one_commit:
        publish(world, later)
    world.pass_time(100)
    first = took(world)
    if one_commit:
        world.publish_drafts([later])
    ack(world, first)
    assert counts(world) == (0, 0, 1)
    assert cancel(world, "x")
    time_passes(world, 1000)
    assert drained(world) == [] and rows(world, Table.LANES, Table.DUE, Table.BY_ID) == 0


def test_a_scheduled_message_that_expires_first_is_not_waited_for() -> None:
    world = queue()
    publish(world, draft("a", due_ms=world.now_ms + 2000, expires_ms=world.now_ms + 500))
    time_passes(world, 500)
    assert counts(world) == (0, 0, 0) and world.partition.state.ended == {"expired": 1}
    time_passes(world, 2000)
    assert counts(world) == (0, 0, 0) and rows(world, Table.LANES, Table.DUE) == 0


def test_a_purge_takes_scheduled_messages_along_whose_rows_are_still_there() -> None:
    world = scheduled()
    publish(world, draft("now"))
    world.purge()
    world.commit()
    assert counts(world) == (0, 0, 0)
    time_passes(world, 1000)
    assert counts(world) == (0, 0, 0) and drained(world) == []
    crashed(world)
    assert counts(world) == (0, 0, 0)


def test_what_is_scheduled_and_purged_in_one_commit_is_not_counted() -> None:
    world = queue()
    world.publish_drafts([draft("a", due_ms=world.now_ms + 100)])
    world.purge()
    world.commit()
    assert counts(world) == (0, 0, 0)
    time_passes(world, 100)
    assert counts(world) == (0, 0, 0)


def test_nothing_is_left_of_what_was_delivered() -> None:
    world = scheduled()
    time_passes(world, 1000)
    assert drained(world) == ["later"]
    assert rows(world, Table.LANES, Table.MARKS, Table.DUE, Table.BY_ID) == 0


def test_very_many_messages_of_one_time_are_counted_some_in_each_turn() -> None:
    world, due_ms, count = queue(), START_MS + 1_000, 2 * DUE_ROWS_PER_TICK + 1
    for _ in range(count):
        world.publish_drafts([draft("1", due_ms=due_ms)])
        world.commit()
    for turn in range(1, 4):
        world.pass_time(1_000 if turn == 1 else 0)
        counted = min(count, turn * DUE_ROWS_PER_TICK)
        assert counts(world) == (counted, 0, count - counted)
        wakeup_ms = world.partition.next_wakeup_ms()
        assert (wakeup_ms is not None and wakeup_ms <= world.now_ms) == (counted < count), "the rest is for the next"
    assert len(drained(world)) == count


# ---------------------------------------------------------------------------------------------------- broken rows


def broken(world: World, table: Table) -> None:
    """The first row of an index is overwritten on the disk."""
    key, _ = world.engine.scan(table, *log_range(REPLICA), 1)[0]
    batch = Batch()
    batch.put(table, key, b"nobody can read this")
    world.engine.commit(batch, lambda: None)


def test_a_message_is_acked_though_the_row_of_its_schedule_is_broken() -> None:
    world = queue()
    publish(world, draft("a", due_ms=world.now_ms + 100))
    broken(world, Table.BY_ID)
    world.pass_time(100)
    assert drained(world) == ["a"] and counts(world) == (0, 0, 0) and world.broken_rows == 1
    crashed(world)
    assert drained(world) == [] and counts(world) == (0, 0, 0)


def test_a_message_expires_though_the_row_of_its_schedule_is_broken_and_the_clock_goes_on() -> None:
    world = queue()
    publish(world, draft("a", due_ms=world.now_ms + 10_000, expires_ms=world.now_ms + 100))
    broken(world, Table.BY_ID)
    time_passes(world, 1_000)
    assert world.partition.state.ended == {"expired": 1}
    wakeup_ms = world.partition.next_wakeup_ms()
    assert wakeup_ms is None or wakeup_ms > world.now_ms
    time_passes(world, 10_000)
    assert drained(world) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_message_whose_due_row_is_broken_is_handed_out_and_no_other_one_with_it(restarts: bool) -> None:
    world = queue()
    publish(world, *(draft(body, due_ms=world.now_ms + in_ms) for body, in_ms in (("a", 100), ("b", 100), ("c", 900))))
    assert cancel(world, message_id(0, 0))
    broken(world, Table.DUE)
    if restarts:
        crashed(world)
    assert counts(world) == (0, 0, 2)
    world.pass_time(100)
    assert counts(world) == (1, 0, 1) and drained(world) == ["b"]
    world.pass_time(800)
    assert drained(world) == ["c"] and counts(world) == (0, 0, 0)
