"""Full queues: what is refused, and what makes room."""

from __future__ import annotations

import pytest

from backend_store.client.search import places_of
from backend_store.core.log.sublogs import DEAD as DEAD_SHELF
from backend_store.model import Original, Published, QueueFull, Stamp
from backend_store.storage.engine import Table
from tests.support.queues import (
    DEAD,
    MAIN,
    ack,
    column,
    counts,
    crashed,
    draft,
    drained,
    nack,
    publish,
    queue,
    rows,
    time_passes,
    took,
)
from tests.support.world import World


def full(overflow: str = "reject", **settings: object) -> World:
    """A queue for three messages that has `a`, `b` and `c`."""
    world = queue(max_messages=3, overflow=overflow, **settings)
    publish(world, *map(draft, "abc"))
    return world


def test_a_full_queue_refuses_and_says_what_it_holds() -> None:
    world = full()
    (refused,) = publish(world, draft("d"))
    assert isinstance(refused, QueueFull) and "has 3 messages" in refused.detail and "3 messages" in refused.detail
    assert drained(world) == ["a", "b", "c"]


def test_a_call_of_which_some_fit_is_told_how_many_there_are_then() -> None:
    world = queue(max_messages=2)
    publish(world, draft("a"))
    stored, refused = publish(world, draft("b"), draft("c"))
    assert stored == 1 and isinstance(refused, QueueFull)
    assert refused.detail.startswith("the queue has 2 messages; its limit is 2 messages")


def test_of_one_call_as_many_are_stored_as_there_is_room_for() -> None:
    world = queue(max_messages=2)
    answers = publish(world, *map(draft, "abcd"))
    assert answers[:2] == [0, 1] and all(isinstance(one, QueueFull) for one in answers[2:])
    assert counts(world) == (2, 0, 0) and drained(world) == ["a", "b"]


def test_an_ack_makes_room_once_it_is_durable() -> None:
    world = full()
    drained(world, limit=1)
    assert publish(world, draft("d")) != [QueueFull] and drained(world) == ["d"]


def test_messages_in_flight_and_delayed_count() -> None:
    world = full()
    nack(world, took(world, 1), due_ms=world.now_ms + 1000)
    took(world, 1)
    assert counts(world) == (1, 1, 1)
    assert isinstance(publish(world, draft("d"))[0], QueueFull)


def test_calls_of_one_commit_share_what_room_there_is() -> None:
    world = queue(max_messages=3)
    answers = [world.publish_drafts([draft(body), draft(body)]) for body in "ab"]
    world.commit()
    first, second = answers[0][0], answers[1][0]
    assert isinstance(first, Published) and first.others is None
    assert isinstance(second, Published) and second.others is not None and list(second.others) == [1]


def test_a_repeat_needs_no_room() -> None:
    world = queue(max_messages=1, dedupe="id")
    publish(world, draft("a", id="x"))
    assert publish(world, draft("again", id="x")) == [Original(0)]


def test_the_oldest_go_where_the_queue_drops_them() -> None:
    world = full("drop_oldest")
    publish(world, draft("d"), draft("e"))
    assert drained(world) == ["c", "d", "e"]
    assert world.partition.state.ended == {"overflow": 2} and counts(world, DEAD) == (0, 0, 0)


def test_the_oldest_become_dead_letters_where_the_queue_says_so() -> None:
    world = full("dead_letter_oldest")
    publish(world, draft("d"))
    assert counts(world) == (3, 0, 0)
    letter = took(world, view=DEAD)
    assert column(letter, "dead")[0]["reason"] == "overflow" and column(letter, "dead")[0]["attempts"] == 0
    assert drained(world) == ["b", "c", "d"]


def test_the_oldest_of_the_lowest_priority_go_first() -> None:
    world = queue(max_messages=3, overflow="drop_oldest", priorities=2)
    publish(world, draft("high", priority=1), draft("low"), draft("high too", priority=1))
    publish(world, draft("d", priority=1))
    assert drained(world) == ["high", "high too", "d"]


def test_what_somebody_holds_is_not_dropped() -> None:
    world = full("drop_oldest")
    took(world, 2)
    publish(world, draft("d"))
    assert counts(world) == (1, 2, 0) and drained(world) == ["d"]
    took(world)
    publish(world, draft("e"))
    lease = took(world)
    assert lease is not None and counts(world) == (0, 3, 0)
    assert isinstance(publish(world, draft("f"))[0], QueueFull), "all of them are in flight"


@pytest.mark.parametrize("is_due", [False, True])
def test_scheduled_messages_make_room_too_and_their_rows_go_with_them(is_due: bool) -> None:
    world = queue(max_messages=3, overflow="drop_oldest")
    publish(world, *[draft(body, due_ms=world.now_ms + 10) for body in "abc"])
    if is_due:
        world.pass_time(10)
    publish(world, draft("d"))
    assert counts(world) == ((3, 0, 0) if is_due else (1, 0, 2))
    time_passes(world, 10)
    assert sorted(drained(world)) == ["b", "c", "d"] and world.partition.state.ended == {"overflow": 1}
    assert rows(world, Table.DUE, Table.LANES) == 0 and counts(world) == (0, 0, 0)


def test_delayed_messages_make_room_too() -> None:
    world = full("drop_oldest")
    nack(world, took(world, 2), due_ms=world.now_ms + 1000)
    publish(world, draft("d"))
    assert counts(world) == (2, 0, 1)
    time_passes(world, 1000)
    assert sorted(drained(world)) == ["b", "c", "d"]


def test_messages_behind_a_key_make_room_too_and_its_order_stays() -> None:
    world = queue(max_messages=4, overflow="drop_oldest", ordering="strict")
    publish(world, draft("k1", key="k"))
    held = took(world)
    publish(world, draft("k2", key="k"), draft("k3", key="k"), draft("j1", key="j"))
    publish(world, draft("k4", key="k"))
    assert counts(world) == (3, 1, 0) and world.partition.state.ended == {"overflow": 1}
    publish(world, draft("k5", key="k"))
    assert drained(world) == ["j1"]
    ack(world, held)
    assert drained(world) == ["k4", "k5"]


@pytest.mark.parametrize("sequencing", ["producer", "clock"])
def test_messages_that_wait_for_their_turn_make_room_too(sequencing: str) -> None:
    world = queue(max_messages=2, overflow="drop_oldest", sequencing=sequencing, sort_window_ms=1000)
    stamps = [Stamp(world.now_ms * 1000 + n, "p", n) for n in (2, 3, 4)]
    for stamp in stamps:
        publish(world, draft(str(stamp.number), stamp=stamp))
    assert counts(world)[2] == 2 and world.partition.state.ended == {"overflow": 1}
    time_passes(world, 1001)
    assert drained(world) == ["3", "4"]


def test_the_lowest_priority_makes_room_though_its_first_in_memory_was_cancelled() -> None:
    world = queue(max_messages=4, overflow="drop_oldest", priorities=3)
    due = draft("due", id="due", priority=1, due_ms=world.now_ms + 100)
    publish(world, draft("low"), draft("middle", priority=1), draft("high", priority=2), due)
    crashed(world)
    time_passes(world, 100)
    publish(world, draft("new", priority=2))  # what is due comes to memory, the others stay on the disk
    assert world.main.cancel(*next(places_of(world.partition, MAIN, "due")), lambda _: None)
    world.settle_down()
    publish(world, draft("newer", priority=2), draft("newest", priority=2))
    assert drained(world) == ["high", "new", "newer", "newest"]


def test_the_newest_become_dead_letters_where_the_queue_says_so() -> None:
    world = full("dead_letter_newest")
    answers = publish(world, draft("d"), draft("e"))
    assert answers == [3, 4], "they are stored, if not in the queue"
    assert counts(world) == (3, 0, 0) and counts(world, DEAD) == (2, 0, 0)
    assert drained(world) == ["a", "b", "c"] and drained(world, view=DEAD) == ["d", "e"]


def test_scheduled_messages_that_find_no_room_are_dead_letters_at_once() -> None:
    world = queue(max_messages=1, overflow="dead_letter_newest")
    publish(world, *[draft(body, due_ms=world.now_ms + 100) for body in "ab"])
    assert counts(world) == (0, 0, 1) and counts(world, DEAD) == (1, 0, 0)
    time_passes(world, 100)
    assert drained(world) == ["a"] and drained(world, view=DEAD) == ["b"]
    assert rows(world, Table.LANES, Table.DUE, Table.MARKS, Table.BY_ID) == 0


def test_a_repeat_by_number_among_those_that_find_no_room_is_no_dead_letter() -> None:
    world = queue(max_messages=1, overflow="dead_letter_newest", sequencing="producer")
    publish(world, draft("1", stamp=Stamp(0, "p", 1)))
    assert publish(world, draft("1", stamp=Stamp(0, "p", 1))) == [Original(0)]
    assert counts(world, DEAD) == (0, 0, 0)


@pytest.mark.parametrize("landed", [False, True])
def test_a_crash_finds_the_new_message_and_the_dropped_one_both_or_none_changed(landed: bool) -> None:
    world = full("dead_letter_oldest")
    world.publish_drafts([draft("d")])
    world.committer.prepare()
    crashed(world, landed=landed)
    dead = drained(world, view=DEAD)
    assert (drained(world), dead) == ((["b", "c", "d"], ["a"]) if landed else (["a", "b", "c"], []))


def test_nothing_is_left_when_all_is_settled() -> None:
    world = full("dead_letter_oldest")
    publish(world, draft("d"))
    drained(world)
    drained(world, view=DEAD)
    assert rows(world, Table.LOG, Table.LANES, Table.MARKS) == 0 and DEAD_SHELF == 32
