"""Priorities: higher ones first, and a share for the lower ones."""

from __future__ import annotations

from collections import Counter

from backend_store.core.limits import LOW_LANES_SHARE
from backend_store.model import QueueConfig
from backend_store.storage.engine import Table
from tests.support.queues import (
    ack,
    counts,
    crashed,
    draft,
    drained,
    nack,
    publish,
    queue,
    rows,
    texts,
    took,
)
from tests.support.world import World


def flooded(*numbers: int) -> World:
    """So many messages of each priority, from 0 on; each body is its priority."""
    world = queue(priorities=len(numbers))
    for priority, count in enumerate(numbers):
        if count:
            publish(world, *[draft(str(priority), priority=priority) for _ in range(count)])
    return world


def served(world: World, messages: int, limit: int = 1) -> Counter[str]:
    found: Counter[str] = Counter()
    while found.total() < messages:
        lease = took(world, limit)
        found.update(texts(lease))
        ack(world, lease)
    return found


def test_higher_priorities_go_first_whenever_they_came() -> None:
    world = queue(priorities=10)
    publish(world, *[draft(str(priority), priority=priority) for priority in (3, 0, 9, 3)])
    assert drained(world) == ["9", "3", "3", "0"]


def test_messages_of_one_priority_keep_the_order_in_which_they_came() -> None:
    world = queue(priorities=2)
    for body in "abcd":
        publish(world, draft(body, priority=1))
    assert drained(world) == ["a", "b", "c", "d"]


def test_one_call_with_several_priorities_learns_the_place_of_each_message() -> None:
    world = queue(priorities=2)
    places = publish(world, draft("low"), draft("high", priority=1), draft("low too"))
    assert places == [0, 2, 1], "the blocks of a priority lie together"


def test_low_priorities_keep_their_share_while_high_ones_flood_the_queue() -> None:
    world = flooded(50, 400)
    found = served(world, 200)
    assert found["0"] == 200 // LOW_LANES_SHARE


def test_the_share_holds_for_consumers_that_take_many_at_once() -> None:
    world = flooded(50, 1000)
    found = served(world, 640, limit=64)
    assert 640 // LOW_LANES_SHARE - 4 <= found["0"] <= 640 // LOW_LANES_SHARE + 4


def test_several_low_priorities_take_turns_with_their_share() -> None:
    world = flooded(50, 50, 1000)
    found = served(world, 400)
    assert found["0"] == found["1"] == 400 // LOW_LANES_SHARE // 2


def test_without_lower_ones_waiting_nothing_is_saved_up_for_them() -> None:
    world = flooded(0, 100)
    served(world, 80)
    publish(world, *[draft("0") for _ in range(10)])
    assert served(world, 10) == {"1": 10}


def test_a_message_that_comes_back_keeps_its_priority() -> None:
    world = flooded(1, 1)
    nack(world, took(world, 1))
    assert drained(world) == ["1", "0"]


def test_priorities_survive_a_crash() -> None:
    world = flooded(2, 1, 2)
    took(world, 1)
    world.settle_down()
    crashed(world)
    assert counts(world) == (5, 0, 0)
    assert drained(world) == ["2", "2", "1", "0", "0"]


def test_a_queue_that_gets_more_priorities_keeps_what_it_has() -> None:
    world = flooded(2)
    world.config = QueueConfig(priorities=3)
    world.partition.configure(world.config)
    publish(world, draft("2", priority=2))
    assert drained(world) == ["2", "0", "0"]


def test_scheduled_messages_have_their_priority_when_their_time_comes() -> None:
    world = queue(priorities=2)
    publish(world, draft("high", priority=1, due_ms=world.now_ms + 10), draft("low"))
    world.pass_time(10)
    assert drained(world) == ["high", "low"]


def test_nothing_is_left_of_any_priority() -> None:
    world = flooded(3, 3, 3)
    drained(world)
    assert rows(world, Table.LOG, Table.LANES, Table.MARKS) == 0
