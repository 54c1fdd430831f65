"""Sorted queues on the disk: the order of release, over crashes, and what becomes of late messages and repeats."""

from __future__ import annotations

import pytest

from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import by_token
from backend_store.core.log.sublogs import SORTING
from backend_store.core.ready import late
from backend_store.model import Original, Overloaded, Stamp
from backend_store.storage.engine import Table
from tests.support.queues import (
    LATE,
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
    receipts,
    rows,
    settle,
    texts,
    time_passes,
    took,
)
from tests.support.world import World

WINDOW_MS = 300


def by_clock(**settings: object) -> World:
    return queue(sequencing="clock", sort_window_ms=WINDOW_MS, **settings)


def by_producer(**settings: object) -> World:
    return queue(sequencing="producer", sort_window_ms=WINDOW_MS, **settings)


def stamped(world: World, *ages_ms: int) -> None:
    """One commit a message; its body is its age."""
    for age_ms in ages_ms:
        publish(world, draft(str(age_ms), stamp=Stamp((world.now_ms - age_ms) * 1000, "p", 0)))


def numbered(world: World, *numbers: int) -> list[object]:
    """One commit a message; its body is its number. What each was answered."""
    return [publish(world, draft(str(n), stamp=Stamp(0, "p", n)))[0] for n in numbers]


def test_messages_wait_for_their_window_and_leave_in_the_order_of_their_stamps() -> None:
    world = by_clock()
    stamped(world, 10, 200, 50)
    assert counts(world) == (0, 0, 3) and took(world) is None
    time_passes(world, 100)
    assert drained(world) == ["200"]
    time_passes(world, 190)
    assert drained(world) == ["50", "10"]


def test_the_queue_asks_to_be_woken_when_the_next_turn_comes() -> None:
    world = by_clock()
    stamped(world, 100)
    assert world.partition.next_wakeup_ms() == world.now_ms + WINDOW_MS - 100


def test_numbers_leave_in_their_order_and_at_once_where_none_is_missing() -> None:
    world = by_producer()
    numbered(world, 1, 3, 4)
    assert counts(world) == (1, 0, 2) and drained(world) == ["1"]
    numbered(world, 2)
    assert drained(world) == ["2", "3", "4"]


def test_a_gap_is_waited_for_no_longer_than_the_window() -> None:
    world = by_producer()
    numbered(world, 1, 3)
    time_passes(world, WINDOW_MS - 1)
    assert counts(world) == (1, 0, 1)
    time_passes(world, 1)
    assert drained(world) == ["1", "3"]


def test_a_repeat_of_a_number_is_dropped_and_answered_with_its_original() -> None:
    world = by_producer()
    first, *repeats = numbered(world, 1, 1)
    assert repeats == [Original(0)] and first == 0
    crashed(world)
    assert numbered(world, 1) == [Original(0)] and drained(world) == ["1"]


@pytest.mark.parametrize("make", [by_clock, by_producer])
def test_the_order_survives_crashes_at_any_time(make: object) -> None:
    world: World = make()  # type: ignore[operator]
    for number, age_ms in ((2, 20), (1, 30), (4, 0), (3, 10)):
        stamp = Stamp((world.now_ms - age_ms) * 1000, "p", number)
        publish(world, draft(str(number), stamp=stamp))
        crashed(world)
    time_passes(world, WINDOW_MS)
    came = drained(world, limit=1)
    assert came == ["1", "2", "3", "4"]
    crashed(world)
    assert drained(world) == [] and counts(world) == (0, 0, 0)


def test_what_had_its_turn_does_not_wait_again_after_a_crash() -> None:
    world = by_producer()
    publish(world, draft("a"), draft("b"), draft("3", stamp=Stamp(0, "p", 3)))
    for _ in range(2):
        crashed(world)
        assert counts(world) == (2, 0, 1)
    numbered(world, 1)
    crashed(world)
    assert counts(world) == (3, 0, 1) and drained(world) == ["a", "b", "1"]


def test_a_late_message_goes_to_the_late_queue_flagged() -> None:
    world = by_clock()
    stamped(world, 0)
    time_passes(world, WINDOW_MS)
    stamped(world, WINDOW_MS + 50)
    assert drained(world) == ["0"] and counts(world, LATE) == (1, 0, 0)
    letter = took(world, view=LATE)
    assert column(letter, "late") == [True] and column(letter, "dead") == [None]
    assert ack(world, letter, view=LATE) == [True] and world.partition.state.ended == {"late": 1}


def test_a_late_message_waits_for_its_ack_however_short_its_life_was_to_be() -> None:
    world = by_producer()
    numbered(world, 2)
    time_passes(world, WINDOW_MS)
    publish(world, draft("1", expires_ms=world.now_ms + 10, stamp=Stamp(0, "p", 1)))
    time_passes(world, 5000)
    assert counts(world, LATE) == (1, 0, 0) and drained(world, view=LATE) == ["1"]


def test_a_late_message_goes_before_all_others_where_the_queue_says_so() -> None:
    world = by_producer(late_messages="head")
    numbered(world, 2, 3)
    time_passes(world, WINDOW_MS)
    numbered(world, 1)
    lease = took(world, 1)
    assert column(lease, "late") == [True]
    ack(world, lease)
    assert drained(world) == ["2", "3"] and counts(world, LATE) == (0, 0, 0)


@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
def test_a_late_message_at_the_head_ends_when_its_life_is_over(ordering: str) -> None:
    world = by_producer(late_messages="head", ordering=ordering)
    numbered(world, 4)
    time_passes(world, WINDOW_MS)
    late_ones = [
        draft(str(n), expires_ms=world.now_ms + 300 * n if n > 1 else 0, stamp=Stamp(0, "p", n)) for n in (1, 2, 3)
    ]
    publish(world, *late_ones)
    time_passes(world, 800)
    assert counts(world) == (3, 0, 0)
    time_passes(world, 300)
    assert counts(world) == (2, 0, 0) and world.partition.state.ended == {"late": 3, "expired": 2}
    assert drained(world) == ["1", "4"]
    assert rows(world, Table.LANES, Table.ORDER, Table.MARKS, Table.EXPIRY) == 0


@pytest.mark.parametrize("late_messages", ["head", "late_queue"])
@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
@pytest.mark.parametrize("landed", [False, True])
def test_a_crash_finds_a_late_message_in_one_place_or_not_at_all(
    late_messages: str, ordering: str, landed: bool
) -> None:
    world = by_producer(late_messages=late_messages, ordering=ordering)
    numbered(world, 2)
    time_passes(world, WINDOW_MS)
    drained(world)
    world.publish_drafts([draft("1", stamp=Stamp(0, "p", 1))])
    world.committer.prepare()
    crashed(world, landed=landed)
    place = MAIN if late_messages == "head" else LATE
    assert drained(world, view=place) == (["1"] if landed else [])


def test_what_comes_back_goes_before_what_has_not_been_out_yet() -> None:
    world = by_producer()
    numbered(world, 1, 2)
    nack(world, took(world, 1))
    assert drained(world) == ["1", "2"]


def test_a_delayed_retry_of_a_sorted_queue_survives_a_crash() -> None:
    world = by_producer()
    numbered(world, 1, 2)
    nack(world, took(world, 1), due_ms=world.now_ms + 1000)
    crashed(world)
    assert counts(world) == (1, 0, 1) and drained(world) == ["2"]
    world.pass_time(1000)
    assert drained(world) == ["1"]


def test_a_message_that_ends_while_it_waits_is_counted_out_at_once_and_leaves_nothing() -> None:
    world = by_producer()
    numbered(world, 2, 3)
    assert world.main.cancel(SORTING, 0, 0, lambda _: None)
    world.settle_down()
    assert counts(world) == (0, 0, 1)
    time_passes(world, WINDOW_MS)
    assert drained(world) == ["3"] and counts(world) == (0, 0, 0)
    assert rows(world, Table.LANES, Table.ORDER, Table.MARKS) == 0


def test_messages_that_wait_for_their_turn_are_bounded() -> None:
    world = by_clock(sort_held_messages_max=2)
    stamped(world, 0, 0)
    (refused,) = publish(world, draft("more", stamp=Stamp(world.now_ms * 1000, "p", 0)))
    assert isinstance(refused, Overloaded) and refused.retry_after_ms == WINDOW_MS


def test_a_purge_takes_what_waits_along_and_the_numbers_go_on() -> None:
    world = by_producer()
    numbered(world, 1, 3)
    world.purge()
    world.settle_down()
    assert counts(world) == (0, 0, 0)
    numbered(world, 4)
    assert drained(world) == ["4"]


def test_nothing_is_left_of_a_sorted_queue_that_is_empty() -> None:
    world = by_clock()
    stamped(world, *range(40))
    time_passes(world, WINDOW_MS)
    lease = took(world)
    leases = [lease]
    while (lease := took(world)) is not None:
        leases.append(lease)
    for one in reversed(leases):
        ack(world, one)
    for _ in range(3):
        world.settle_down()
    assert rows(world, Table.LANES, Table.ORDER, Table.MARKS) == 0


# ------------------------------------------------------------------------------- late messages in strict order


def strictly(**settings: object) -> World:
    """In strict order, with late messages at the head of their keys."""
    return by_producer(ordering="strict", late_messages="head", **settings)


def keyed(world: World, *numbers: int, key: str | None = "k", producer: str = "p") -> None:
    """One commit a message; its body is its number."""
    for number in numbers:
        publish(world, draft(str(number), key=key, stamp=Stamp(0, producer, number)))


def with_a_gap(world: World, *, key: str | None = "k") -> None:
    """The numbers 3 to 5 have had their turn: 1 and 2 are late."""
    keyed(world, 3, 4, 5, key=key)
    time_passes(world, WINDOW_MS)


def durable(world: World, limit: int = 64) -> Lease | None:
    """A lease that is on the disk."""
    lease = took(world, limit)
    world.settle_down()
    return lease


@pytest.mark.parametrize("key", ["k", None])
def test_in_strict_order_a_late_message_goes_before_those_of_its_key_that_nobody_had(key: str | None) -> None:
    world = strictly(lease_mode="replicated")
    with_a_gap(world, key=key)
    keyed(world, 1, 2, key=key)
    first = durable(world, 1)
    assert texts(first) == ["1"] and column(first, "late") == [True]
    assert took(world) is None
    ack(world, first)
    assert drained(world) == ["2", "3", "4", "5"] and counts(world, LATE) == (0, 0, 0)


@pytest.mark.parametrize("key", ["k", None])
def test_a_late_message_of_a_locked_key_waits_and_comes_before_the_later_ones(key: str | None) -> None:
    world = strictly(lease_mode="replicated")
    with_a_gap(world, key=key)
    held = durable(world, 1)
    assert texts(held) == ["3"]
    keyed(world, 1, 2, key=key)
    keyed(world, 7, key="other", producer="q")
    time_passes(world, WINDOW_MS)
    keyed(world, 6, key="other", producer="q")
    assert drained(world) == ["6", "7"]
    ack(world, held)
    assert drained(world) == ["1", "2", "4", "5"]


def test_a_late_message_waits_for_all_that_its_keys_consumer_holds() -> None:
    world = strictly(key_run_max=2)
    publish(world, *(draft(str(n), key="k", stamp=Stamp(0, "p", n)) for n in (3, 4, 5)))
    time_passes(world, WINDOW_MS)
    held = took(world, 2)
    assert texts(held) == ["3", "4"]
    first, second = receipts(held)
    keyed(world, 1)
    settle(world, [first])
    assert took(world) is None
    settle(world, [second])
    assert drained(world) == ["1", "5"]


@pytest.mark.parametrize("delay_ms", [0, 1000])
def test_what_comes_back_of_a_key_goes_before_its_late_messages(delay_ms: int) -> None:
    world = strictly()
    with_a_gap(world)
    held = took(world, 1)
    keyed(world, 1)
    nack(world, held, due_ms=world.now_ms + delay_ms if delay_ms else 0)
    keyed(world, 2)
    if delay_ms:
        assert took(world) is None
        time_passes(world, delay_ms)
    assert drained(world) == ["3", "1", "2", "4", "5"]


@pytest.mark.parametrize("delay_ms", [0, 1000])
def test_a_late_message_that_comes_back_holds_its_key(delay_ms: int) -> None:
    world = strictly()
    with_a_gap(world)
    keyed(world, 1, 2)
    nack(world, took(world, 1), due_ms=world.now_ms + delay_ms if delay_ms else 0)
    if delay_ms:
        assert took(world) is None
        time_passes(world, delay_ms)
    assert drained(world) == ["1", "2", "3", "4", "5"]


def test_a_late_message_of_a_key_that_a_consumer_holds_since_before_a_crash_waits() -> None:
    world = strictly(lease_mode="replicated")
    with_a_gap(world)
    held = durable(world, 1)
    keyed(world, 1)
    crashed(world)
    assert took(world) is None
    keyed(world, 2)
    assert took(world) is None
    settle(world, receipts(held))
    assert drained(world) == ["1", "2", "4", "5"]


def test_a_late_message_that_a_consumer_holds_since_before_a_crash_locks_its_key() -> None:
    world = strictly(lease_mode="replicated")
    with_a_gap(world)
    keyed(world, 1, 2)
    held = durable(world, 1)
    crashed(world)
    assert texts(held) == ["1"] and took(world) is None
    settle(world, receipts(held))
    assert drained(world) == ["2", "3", "4", "5"]


def test_a_late_retry_that_waits_for_its_time_holds_its_key_over_a_crash() -> None:
    world = strictly()
    with_a_gap(world)
    keyed(world, 1)
    nack(world, took(world, 1), due_ms=world.now_ms + 1000)
    crashed(world)
    assert took(world) is None
    time_passes(world, 1000)
    assert drained(world) == ["1", "3", "4", "5"]


def test_many_late_messages_are_all_delivered_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "LATE_CHUNKS_IN_MEMORY_MAX", 2)
    world = strictly()
    keyed(world, 40)
    time_passes(world, WINDOW_MS)
    keyed(world, *range(1, 40))
    crashed(world)
    assert drained(world) == [*map(str, range(1, 41))]
    for _ in range(3):
        world.settle_down()
    assert rows(world, Table.LANES, Table.ORDER, Table.MARKS) == 0


def test_a_purge_takes_late_messages_along() -> None:
    world = strictly()
    with_a_gap(world)
    held = took(world, 1)
    keyed(world, 1)
    world.purge()
    world.settle_down()
    assert held is not None and counts(world) == (0, 0, 0)
    keyed(world, 2, 6)
    assert drained(world) == ["2", "6"]


@pytest.mark.parametrize("late_messages", ["head", "late_queue"])
def test_a_retry_that_is_due_before_its_key_is_read_after_a_crash_keeps_its_place(late_messages: str) -> None:
    world = by_producer(ordering="strict", late_messages=late_messages, key_run_max=2)
    publish(world, draft("1"), draft("2"))
    _, second = receipts(took(world, 2))
    answers: list[object] = []
    world.main.give_back(by_token([second]), world.now_ms + 20, None, answers.append)
    world.settle_down()
    crashed(world)
    time_passes(world, 20)
    assert answers and drained(world) == ["1", "2"]


def test_a_retry_after_a_crash_does_not_overtake_what_waits_behind_a_late_message() -> None:
    world = strictly(key_run_max=2)
    publish(world, *(draft(str(n), key="k", stamp=Stamp(0, "p", n)) for n in (3, 4)))
    time_passes(world, WINDOW_MS)
    _, second = receipts(took(world, 2))
    answers: list[object] = []
    world.main.give_back(by_token([second]), world.now_ms + 1000, None, answers.append)
    world.settle_down()
    crashed(world)
    keyed(world, 1)
    assert answers and took(world) is None
    time_passes(world, 1000)
    assert drained(world) == ["1", "3", "4"]
