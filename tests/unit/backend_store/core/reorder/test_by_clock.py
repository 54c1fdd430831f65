"""Order by clock: released in the order of stamps once they are old enough, whatever single clocks do."""

from __future__ import annotations

import pytest

from backend_store.core.limits import CLOCK_AHEAD_MS_MAX
from backend_store.core.reorder.by_clock import ByClock
from backend_store.core.reorder.records import WatermarkRaised
from backend_store.core.reorder.sorter import Held
from backend_store.model import Overloaded, Stamp
from tests.support.sorted_log import START_MS, Accepted, SortedLog, config

WINDOW_MS = 1000
HOUR_MS = 3_600_000


def stamp(ms: int, producer: str = "p", number: int = 0, step: int = 0) -> Stamp:
    return Stamp((START_MS + ms) * 1000 + step, producer, number)


def log(**settings: int) -> SortedLog:
    return SortedLog(config("clock", sort_window_ms=WINDOW_MS, **settings))


def late(answers: list[object]) -> list[bool]:
    assert all(isinstance(answer, Accepted) for answer in answers)
    return [answer.is_late for answer in answers if isinstance(answer, Accepted)]


def released(queue: SortedLog) -> list[tuple[int, int]]:
    return [(offset, now_ms - START_MS) for offset, now_ms in queue.released]


def test_messages_leave_in_the_order_of_their_stamps_when_they_are_a_window_old() -> None:
    queue = log()
    queue.cycle([stamp(30), stamp(10)], now_ms=START_MS + 40)
    queue.cycle([stamp(20), stamp(5)], now_ms=START_MS + 50)
    assert queue.sorter.next_release_ms() == START_MS + WINDOW_MS + 5
    queue.cycle(now_ms=START_MS + WINDOW_MS + 4)
    assert released(queue) == []
    queue.cycle(now_ms=START_MS + WINDOW_MS + 10)
    assert released(queue) == [(3, 1010), (1, 1010)]
    queue.cycle(now_ms=START_MS + WINDOW_MS + 30)
    assert [offset for offset, _ in queue.released] == [3, 1, 2, 0]
    assert queue.sorter.next_release_ms() is None


def test_one_time_is_ordered_by_producer_then_number_then_arrival() -> None:
    queue = log()
    stamps = [stamp(1, "b", 1), stamp(1, "a", 2), stamp(1, "a", 1), stamp(1, "a", 1), stamp(1, "a", 9, step=-1)]
    queue.cycle(stamps, now_ms=START_MS + 1)
    queue.cycle(now_ms=START_MS + WINDOW_MS + 1)
    assert [offset for offset, _ in queue.released] == [4, 2, 3, 1, 0]


def test_a_message_whose_place_was_handed_out_is_late() -> None:
    queue = log()
    queue.cycle([stamp(10, "m", 5)], now_ms=START_MS + 10)
    queue.cycle(now_ms=START_MS + WINDOW_MS + 10)
    arrivals = [stamp(10, "m", 4), stamp(9), stamp(10, "m", 5), stamp(10, "m", 6), stamp(10, "n"), stamp(11)]
    answers = queue.cycle(arrivals, now_ms=START_MS + WINDOW_MS + 11)
    assert late(answers) == [True, True, False, False, False, False]
    assert queue.sorter.counts.late == 2
    assert [offset for offset, _ in queue.released] == [0, 3, 4, 5, 6]


def test_an_old_message_is_not_late_while_nothing_after_it_was_released() -> None:
    queue = log()
    answers = queue.cycle([stamp(-5 * HOUR_MS)], now_ms=START_MS)
    assert late(answers) == [False] and released(queue) == [(0, 0)]


def test_a_clock_ahead_within_the_bound_is_believed() -> None:
    queue = log()
    queue.cycle([stamp(CLOCK_AHEAD_MS_MAX, step=999), stamp(100)], now_ms=START_MS)
    queue.cycle([stamp(200)], now_ms=START_MS + 300)
    queue.cycle(now_ms=START_MS + WINDOW_MS + CLOCK_AHEAD_MS_MAX)
    assert [offset for offset, _ in queue.released] == [1, 2, 0]
    assert queue.sorter.counts.clamped == 0


def test_a_clock_ahead_beyond_the_bound_is_ordered_by_arrival_and_counted() -> None:
    queue = log()
    queue.cycle([stamp(CLOCK_AHEAD_MS_MAX + 1, "fast")], now_ms=START_MS)
    queue.cycle([stamp(HOUR_MS, "fast", 2), stamp(3 * HOUR_MS, "fast", 1)], now_ms=START_MS + 50)
    queue.cycle([stamp(60)], now_ms=START_MS + 60)
    queue.cycle(now_ms=START_MS + WINDOW_MS + 60)
    assert [offset for offset, _ in queue.released] == [0, 2, 1, 3]
    assert queue.sorter.counts.clamped == 3


def test_a_clock_far_ahead_makes_nobody_else_late() -> None:
    queue = log()
    for ms in range(0, 3000, 10):
        answers = queue.cycle([stamp(HOUR_MS + ms, "fast"), stamp(ms - 900, "slow")], now_ms=START_MS + ms)
        assert late(answers) == [False, False]


def test_a_clock_that_was_set_back_sends_late_messages_and_the_others_go_on() -> None:
    queue = log()
    for ms in range(0, 3000, 10):
        back = 5000 if ms > 1500 else 0
        answers = queue.cycle([stamp(ms), stamp(ms - back, "back")], now_ms=START_MS + ms)
        assert late(answers) == [False, back > 0]


def test_a_message_without_a_stamp_is_ordered_by_its_arrival() -> None:
    queue = log()
    queue.cycle([stamp(5), None, Stamp(0, "p", 3)], now_ms=START_MS + 4)
    queue.cycle(now_ms=START_MS + WINDOW_MS + 5)
    assert [offset for offset, _ in queue.released] == [1, 2, 0]
    assert queue.sorter.counts.clamped == 0


def test_the_watermark_is_stored_when_it_rose_and_only_then() -> None:
    sorter = ByClock(config("clock", sort_window_ms=10), "orders")
    sorter.add(sorter.decide([stamp(3, "a", 7), stamp(1)], START_MS + 3), range(2))
    assert sorter.release(START_MS + 3) == [] and sorter.records() == []
    assert sorter.release(START_MS + 13) == [1, 0]
    assert sorter.records() == [WatermarkRaised(stamp(3, "a", 7), START_MS + 13)]
    assert sorter.release(START_MS + 99) == [] and sorter.records() == []


def test_without_a_window_each_cycle_is_sorted_by_itself() -> None:
    queue = SortedLog(config("clock", sort_window_ms=0))
    queue.cycle([stamp(0, step=5), stamp(0, step=2)], now_ms=START_MS)
    answers = queue.cycle([stamp(0, step=4), None, stamp(HOUR_MS)], now_ms=START_MS)
    assert late(answers) == [True, False, False]
    assert [offset for offset, _ in queue.released] == [1, 0, 3, 4]


# ------------------------------------------------------------------------------------------------------ restarts


def test_a_restart_orders_clamped_messages_as_before() -> None:
    queue = log()
    queue.cycle([stamp(0, "a"), stamp(HOUR_MS, "fast", 2)], now_ms=START_MS)
    queue.cycle([stamp(HOUR_MS - 5000, "fast", 1), stamp(400, "z")], now_ms=START_MS + 10)
    before = queue.sorter
    after = queue.restored(START_MS + 20)
    for ms in (1000, 1009, 1010, 1399, 1400):
        assert before.release(START_MS + ms) == after.release(START_MS + ms)
    assert (before.held, after.held) == (0, 0)


@pytest.mark.parametrize("set_back_ms", [0, 500, HOUR_MS])
def test_a_clock_set_back_over_a_restart_holds_nothing_up(set_back_ms: int) -> None:
    queue = log()
    queue.cycle([stamp(0)], now_ms=START_MS)
    queue.cycle([stamp(1500)], now_ms=START_MS + 1500)
    now_ms = START_MS + 1500 - set_back_ms
    queue.restart(now_ms)
    answers = queue.cycle([stamp(1600)], now_ms=now_ms + 100)
    assert late(answers) == [False]
    assert queue.sorter.next_release_ms() == now_ms + WINDOW_MS
    queue.cycle(now_ms=now_ms + WINDOW_MS + 100)
    assert [offset for offset, _ in queue.released] == [0, 1, 2]


def test_an_idle_queue_whose_clock_was_set_back_makes_nothing_late() -> None:
    queue = log()
    queue.cycle([stamp(0)], now_ms=START_MS)
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    queue.restart(START_MS - HOUR_MS)
    answers = queue.cycle([None, stamp(5000)], now_ms=START_MS - HOUR_MS)
    assert late(answers) == [False, False]
    queue.cycle(now_ms=START_MS - HOUR_MS + WINDOW_MS)
    assert [offset for offset, _ in queue.released] == [0, 1, 2]


def test_a_window_that_grew_is_no_later_time_after_a_restart() -> None:
    queue = log()
    queue.cycle([stamp(0)], now_ms=START_MS)
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    queue.config = config("clock", sort_window_ms=HOUR_MS)
    queue.restart(START_MS + WINDOW_MS)
    queue.cycle([stamp(900)], now_ms=START_MS + WINDOW_MS)
    assert queue.sorter.next_release_ms() == START_MS + HOUR_MS + 900


def test_a_held_message_below_the_watermark_is_released_next() -> None:
    sorter = ByClock(config("clock", sort_window_ms=WINDOW_MS), "orders")
    sorter.restore(
        [WatermarkRaised(stamp(10), START_MS)],
        [Held(4, stamp(5), START_MS + 5), Held(5, stamp(11), START_MS)],
        START_MS,
    )
    assert sorter.release(START_MS + WINDOW_MS + 11) == [4, 5]


def test_where_held_messages_begin_follows_the_releases() -> None:
    queue = log()
    for ms in range(0, 20_000, 7):
        queue.cycle([stamp(ms - ms % 400, number=ms)], now_ms=START_MS + ms)
        queue.waiting()  # asserts that none lies below
        assert len(queue.log) - queue.held_from <= 300
    queue.cycle(now_ms=START_MS + 30_000)
    assert queue.held_from == len(queue.log)


def test_a_shorter_window_does_not_lose_sight_of_what_waits() -> None:
    queue = SortedLog(config("clock", sort_window_ms=HOUR_MS))
    for ms in range(0, 60_000, 500):
        queue.cycle([stamp(ms)], now_ms=START_MS + ms)
    queue.sorter.configure(config("clock", sort_window_ms=30_000))
    for ms in range(60_000, 100_000, 500):
        queue.cycle([stamp(ms)], now_ms=START_MS + ms)
        queue.waiting()


# -------------------------------------------------------------------------------------------------------- bounds


def test_a_full_queue_refuses_what_would_wait_and_says_until_when() -> None:
    queue = log(sort_held_messages_max=2)
    queue.cycle([stamp(0), stamp(10)], now_ms=START_MS + 10)
    answers = queue.cycle([stamp(20)], [stamp(30)], now_ms=START_MS + 30)
    for answer in answers:
        assert isinstance(answer, Overloaded)
        assert answer.detail == (
            "queue 'orders': 2 messages are waiting for their position, the maximum (sort_held_messages_max)"
        )
        assert answer.retry_after_ms == WINDOW_MS - 30
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    assert isinstance(queue.cycle([stamp(20)], now_ms=START_MS + WINDOW_MS)[0], Accepted)
    assert queue.sorter.counts.refused == 2


def test_the_calls_of_one_cycle_share_the_room() -> None:
    queue = log(sort_held_messages_max=3)
    answers = queue.cycle([stamp(0), stamp(1)], [stamp(2), stamp(3)], [stamp(4)], now_ms=START_MS)
    assert [isinstance(answer, Accepted) for answer in answers] == [True, True, True, False, False]


def test_a_late_message_needs_no_room() -> None:
    queue = log(sort_held_messages_max=1)
    queue.cycle([stamp(0)], now_ms=START_MS)
    queue.cycle([stamp(WINDOW_MS)], now_ms=START_MS + WINDOW_MS)
    queue.cycle([stamp(WINDOW_MS)], now_ms=START_MS + WINDOW_MS)
    assert late(queue.cycle([stamp(-1)], now_ms=START_MS + WINDOW_MS)) == [True]
