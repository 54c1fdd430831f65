"""Who is woken when: in the order of the times, each once, and only those whose time has come."""

from __future__ import annotations

from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.model import QueueConfig
from backend_store.node.timers.alarms import Alarms
from tests.support.node_world import NodeWorld
from tests.support.stores import published


def test_only_those_whose_time_has_come_are_woken() -> None:
    alarms: Alarms[str] = Alarms()
    for name, at_ms in (("late", 300), ("early", 100), ("middle", 200)):
        alarms.set(name, at_ms)
    assert alarms.next_ms() == 100
    assert alarms.take(99) == []
    assert alarms.take(200) == ["early", "middle"]
    assert alarms.next_ms() == 300 and alarms.take(300) == ["late"] and alarms.next_ms() is None


def test_the_first_time_counts_whatever_was_asked_for_after_it() -> None:
    alarms: Alarms[str] = Alarms()
    for at_ms in (200, 400, 100, 300):
        alarms.set("one", at_ms)
    assert alarms.take(100) == ["one"]


def test_a_second_time_is_kept_and_further_ones_are_the_sleepers_to_say() -> None:
    alarms: Alarms[str] = Alarms()
    for at_ms in (100, 400, 300, 200, 500):
        alarms.set("one", at_ms)
    assert alarms.take(100) == ["one"] and alarms.next_ms() == 200
    alarms.set("one", 150)
    assert alarms.take(150) == ["one"] and alarms.take(200) == ["one"]
    assert alarms.next_ms() is None


def test_who_is_dropped_is_not_woken_and_may_ask_again() -> None:
    alarms: Alarms[str] = Alarms()
    for name, at_ms in (("one", 100), ("one", 200), ("other", 150)):
        alarms.set(name, at_ms)
    alarms.drop("one")
    alarms.drop("nobody")
    assert alarms.next_ms() == 150 and alarms.take(300) == ["other"]
    alarms.set("one", 400)
    alarms.drop("one")
    alarms.set("one", 400)
    assert alarms.take(400) == ["one"] and alarms.next_ms() is None


def test_those_who_are_dropped_are_not_kept_until_their_time() -> None:
    alarms: Alarms[int] = Alarms()
    alarms.set(-1, 1)
    for number in range(10_000):
        alarms.set(number, 1_000 + number)
        alarms.drop(number)
    assert len(alarms._heap) < 100
    assert alarms.take(20_000) == [-1]


def test_many_times_of_one_cost_two() -> None:
    alarms: Alarms[str] = Alarms()
    for at_ms in range(100, 10_000):
        alarms.set("one", at_ms)
    assert len(alarms._heap) == 1


def test_a_queue_whose_time_has_come_is_the_only_one_that_is_looked_at() -> None:
    """Each of a hundred queues has a message for another second: in a hundred seconds each is woken for its own."""
    world = NodeWorld()
    for number in range(100):
        queue = world.make(f"q{number}", QueueConfig())
        later = Draft(KIND_JSON, b"1", None, due_ms=world.now_ms + 1_000 * (number + 1))
        world.do(published(queue, later))
    before = world.node.ticks
    world.pass_time(101_000)
    assert sum(queue.stats().ready for queue in world.store.queues()) == 100
    assert 100 <= world.node.ticks - before <= 200
    world.close()
