"""Rows of a release order that broke on the disk: their messages are late, not lost."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.core.log.sublogs import SORTING
from backend_store.model import Stamp
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_range
from tests.support.queues import (
    LATE,
    ack,
    column,
    counts,
    crashed,
    draft,
    drained,
    present,
    publish,
    queue,
    receipts,
    rows,
    texts,
    time_passes,
    took,
)
from tests.support.world import REPLICA, World


def released(count: int, **settings: Any) -> World:
    """So many messages whose turn has come, each in a row of its own."""
    world = queue(sequencing="producer", sort_window_ms=300, **settings)
    for number in range(1, count + 1):
        publish(world, draft(str(number), stamp=Stamp(0, "p", number)))
    return world


def broken(world: World, *numbers: int) -> None:
    """Rows of the release order are overwritten on the disk, and the process starts anew."""
    batch = Batch()
    for number, (key, _) in enumerate(world.engine.scan(Table.ORDER, *log_range(REPLICA), 1_000)):
        if number in numbers:
            batch.put(Table.ORDER, key, b"nobody can read this")
    world.engine.commit(batch, lambda: None)
    crashed(world)


def settled_down(world: World) -> None:
    """What waits for a commit, and what is put off to the next turns of the loop."""
    world.settle_down()
    while world.soon_calls:
        a_turn(world)
        world.settle_down()


def a_turn(world: World) -> None:
    calls, world.soon_calls = world.soon_calls, []
    for call in calls:
        call()


def all_drained(world: World) -> list[str]:
    came = drained(world)
    settled_down(world)
    return came + drained(world)


def test_messages_of_a_broken_row_go_to_the_late_queue_and_the_others_on_in_their_order() -> None:
    world = released(5)
    broken(world, 1, 3)
    assert all_drained(world) == ["1", "3", "5"]
    letters = took(world, view=LATE)
    assert column(letters, "late") == [True, True] and texts(letters) == ["2", "4"]
    ack(world, letters, view=LATE)
    assert world.partition.state.ended == {"late": 2} and world.broken_rows > 0
    assert counts(world) == (0, 0, 0) and rows(world, Table.ORDER) == 0 and present(world, SORTING) == 0


def test_messages_of_a_broken_row_go_to_the_head_where_late_ones_do() -> None:
    world = released(4, late_messages="head")
    broken(world, 2)
    assert texts(took(world, 1)) == ["1"]
    assert texts(took(world, 1)) == ["2"]
    assert texts(took(world, 1)) == ["4"], "this is where it turns out"
    publish(world, draft("5", stamp=Stamp(0, "p", 5)))
    settled_down(world)
    late = took(world, 1)
    assert texts(late) == ["3"] and column(late, "late") == [True]
    assert drained(world) == ["5"]


def test_what_waits_for_its_turn_and_what_somebody_holds_is_not_late() -> None:
    world = released(3, lease_mode="replicated")
    held = took(world, 1)
    world.settle_down()
    publish(world, draft("5", stamp=Stamp(0, "p", 5)))
    broken(world, 0, 1)
    assert all_drained(world) == ["3"]
    assert drained(world, view=LATE) == ["2"] and counts(world) == (0, 1, 1)
    assert world.ack(*receipts(held)) == [True]
    time_passes(world, 300)
    assert drained(world) == ["5"]
    world.settle_down()
    assert rows(world, Table.ORDER) == 0


@pytest.mark.parametrize("steps", range(8))
def test_a_crash_while_they_are_looked_for_loses_none_and_brings_none_twice(steps: int) -> None:
    world = released(4)
    broken(world, 1, 2)
    came = texts(lease := took(world))
    ack(world, lease)
    for _ in range(steps):
        if world.committer.is_in_flight:
            world.committer.land()
        elif not world.committer.prepare():
            a_turn(world)
    crashed(world)
    came += all_drained(world)
    assert came == ["1", "4"] and sorted(drained(world, view=LATE)) == ["2", "3"]


def test_a_broken_row_of_messages_that_are_settled_goes_without_a_word() -> None:
    world = queue(sequencing="producer")
    publish(world, *(draft(str(n), stamp=Stamp(0, "p", n)) for n in (1, 3)))
    ack(world, took(world))
    publish(world, draft("2", stamp=Stamp(0, "p", 2)))
    broken(world, 0)
    assert all_drained(world) == ["2", "3"]
    assert drained(world, view=LATE) == [] and rows(world, Table.ORDER) == 0


def test_a_purge_takes_what_is_looked_for_along() -> None:
    world = released(3)
    broken(world, 0, 1, 2)
    assert took(world) is None
    world.purge()
    settled_down(world)
    assert drained(world) == [] and drained(world, view=LATE) == [] and counts(world) == (0, 0, 0)
    publish(world, draft("4", stamp=Stamp(0, "p", 4)))
    assert drained(world) == ["4"]


def test_many_rows_are_looked_through_in_turns() -> None:
    world = released(200)
    broken(world, 100)
    came = drained(world)
    turns = 0
    while world.soon_calls:
        turns += 1
        a_turn(world)
        world.settle_down()
    assert turns > 1 and len(came) == 199 and drained(world, view=LATE) == ["101"]
