"""Order by producer: numbers in their order, gaps waited for, repeats known, and late ones told apart from both."""

from __future__ import annotations

import pytest

from backend_store.core.limits import RECENT_RUNS_PER_PRODUCER_MAX
from backend_store.core.reorder import by_producer, producers
from backend_store.core.reorder.by_producer import ByProducer
from backend_store.core.reorder.records import ProducerAdvanced, ProducerForgotten
from backend_store.core.reorder.sorter import NO_MESSAGE, Held
from backend_store.model import Original, Overloaded, QueueConfig, Stamp
from tests.support.sorted_log import START_MS, Accepted, Answer, SortedLog, config

WINDOW_MS = 1000
DEDUPE_MS = 300_000


def numbered(*numbers: int, producer: str = "p") -> list[Stamp | None]:
    return [Stamp(0, producer, number) for number in numbers]


def log(**settings: int) -> SortedLog:
    return SortedLog(config("producer", sort_window_ms=WINDOW_MS, **settings))


def numbers(queue: SortedLog) -> list[int]:
    return [stamp.number if stamp is not None else 0 for stamp in queue.order()]


def late(answers: list[Answer]) -> list[bool]:
    return [isinstance(answer, Accepted) and answer.is_late for answer in answers]


def test_numbers_in_order_leave_in_the_cycle_they_came_in() -> None:
    queue = log()
    queue.cycle(numbered(1, 2, 3), now_ms=START_MS)
    queue.cycle(numbered(4), now_ms=START_MS)
    assert queue.released == [(offset, START_MS) for offset in range(4)]


def test_producers_do_not_wait_for_each_other_and_leave_by_arrival() -> None:
    queue = log()
    queue.cycle(
        [*numbered(2, producer="a"), *numbered(1, 2, producer="b"), *numbered(1, producer="a")], now_ms=START_MS
    )
    assert [offset for offset, _ in queue.released] == [1, 2, 3, 0]


def test_messages_without_a_number_leave_as_they_come() -> None:
    queue = log()
    queue.cycle([None, Stamp(5), *numbered(2), Stamp(0, "", 4), Stamp(0, "p", 0), None], now_ms=START_MS)
    assert [offset for offset, _ in queue.released] == [0, 1, 3, 4, 5]


def test_a_gap_is_waited_for_and_filled_in_time() -> None:
    queue = log()
    queue.cycle(numbered(1, 3, 5, 4), now_ms=START_MS)
    assert numbers(queue) == [1]
    queue.cycle(numbered(2), now_ms=START_MS + WINDOW_MS - 1)
    assert numbers(queue) == [1, 2, 3, 4, 5]
    assert queue.sorter.next_release_ms() is None and queue.sorter.held == 0
    assert queue.sorter.counts.gaps_given_up == 0


def test_a_gap_is_given_up_a_window_after_the_first_message_behind_it_came() -> None:
    queue = log()
    queue.cycle(numbered(1, 3), now_ms=START_MS)
    queue.cycle(numbered(4, 6), now_ms=START_MS + 400)
    assert queue.sorter.next_release_ms() == START_MS + WINDOW_MS
    queue.cycle(now_ms=START_MS + WINDOW_MS - 1)
    assert numbers(queue) == [1]
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    assert numbers(queue) == [1, 3, 4]
    assert queue.sorter.next_release_ms() == START_MS + WINDOW_MS + 400
    queue.cycle(now_ms=START_MS + WINDOW_MS + 400)
    assert numbers(queue) == [1, 3, 4, 6]
    assert queue.sorter.counts.gaps_given_up == 2


def test_a_message_waits_no_longer_than_the_window_whatever_came_before_it_later() -> None:
    queue = log()
    queue.cycle(numbered(9), now_ms=START_MS)
    queue.cycle(numbered(4, 6), now_ms=START_MS + 900)
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    assert numbers(queue) == [4, 6, 9]


def test_a_number_of_a_gap_given_up_is_late_once_and_then_a_repeat() -> None:
    queue = log()
    queue.cycle(numbered(1, 4), now_ms=START_MS)
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    answers = queue.cycle(numbered(3, 3, 2), now_ms=START_MS + WINDOW_MS)
    assert answers == [Accepted(2, True), Original(2), Accepted(3, True)]
    assert queue.cycle(numbered(2, 3), now_ms=START_MS + 2000) == [Original(3), Original(2)]
    assert numbers(queue) == [1, 4]


def test_a_repeat_is_answered_with_its_originals_place() -> None:
    queue = log()
    queue.cycle(numbered(1, 2, 5), now_ms=START_MS)
    assert queue.cycle(numbered(2, 5, 1), now_ms=START_MS) == [Original(1), Original(2), Original(0)]
    assert queue.cycle(numbered(3, 3), numbered(3, 6, 6), now_ms=START_MS) == [
        Accepted(3, False),
        Original(3),
        Original(3),
        Accepted(4, False),
        Original(4),
    ]
    assert queue.sorter.counts.repeats == 6


def test_a_repeat_of_something_long_ago_is_known_by_its_number_alone() -> None:
    queue = log()
    for number in range(1, RECENT_RUNS_PER_PRODUCER_MAX + 2):
        queue.cycle(numbered(number), [None], now_ms=START_MS)
    assert queue.cycle(numbered(1, 2), now_ms=START_MS) == [Original(-1), Original(2)]


def test_a_producer_that_begins_above_one_waits_like_behind_any_gap() -> None:
    queue = log()
    queue.cycle(numbered(501, 502), now_ms=START_MS)
    assert numbers(queue) == []
    queue.cycle(numbered(503), now_ms=START_MS + WINDOW_MS)
    assert numbers(queue) == [501, 502, 503]
    assert late(queue.cycle(numbered(500), now_ms=START_MS + WINDOW_MS)) == [True]


def test_a_number_whose_message_was_dropped_elsewhere_counts_as_used() -> None:
    sorter = ByProducer(config("producer"), "orders")
    sorter.add(sorter.decide(numbered(1, 3, 2, 4), START_MS), [10, 11, NO_MESSAGE, 12])
    assert sorter.release(START_MS) == [10, 11, 12]
    sorter.add(sorter.decide(numbered(6), START_MS), [NO_MESSAGE])
    assert sorter.held_from(99) == 99
    decision = sorter.decide(numbered(5, 6), START_MS)
    assert decision.repeats == [1] and sorter.add(decision, [13, 0]) == {1: Original(-1)}
    assert sorter.release(START_MS) == [13]


def test_a_long_wait_of_one_producer_does_not_pile_up_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_producer, "_WAITS_OVER_MAX", 10)
    queue = log()
    queue.cycle(numbered(2, producer="waits"), now_ms=START_MS)
    for number in range(2, 400, 2):
        queue.cycle(numbered(number, number - 1), now_ms=START_MS)
    assert isinstance(queue.sorter, ByProducer) and len(queue.sorter._waiting) < 20
    assert queue.held_from == 0 and queue.sorter.next_release_ms() == START_MS + WINDOW_MS


# -------------------------------------------------------------------------------------------------------- bounds


def test_a_full_queue_takes_what_fills_a_gap_and_nothing_that_waits() -> None:
    queue = log(sort_held_messages_max=2)
    queue.cycle(numbered(3, 4), now_ms=START_MS)
    answers = queue.cycle(numbered(5, 1), now_ms=START_MS + 400)
    refused = answers[0]
    assert isinstance(refused, Overloaded) and "2 messages are waiting" in refused.detail
    assert refused.retry_after_ms == WINDOW_MS - 400
    assert isinstance(answers[1], Accepted)
    answers = queue.cycle(numbered(2, 7, 8, 9), now_ms=START_MS + 500)
    assert [isinstance(answer, Accepted) for answer in answers] == [True, True, True, False]
    assert numbers(queue) == [1, 2, 3, 4]


@pytest.fixture
def three_producers(monkeypatch: pytest.MonkeyPatch) -> SortedLog:
    """A queue that keeps three and has them: "a" was heard first."""
    monkeypatch.setattr(producers, "PRODUCERS_PER_PARTITION_MAX", 3)
    monkeypatch.setattr(by_producer, "PRODUCERS_PER_PARTITION_MAX", 3)
    queue = log(dedupe_window_ms=DEDUPE_MS)
    for late_ms, name in enumerate("abc"):
        queue.cycle(numbered(1, producer=name), now_ms=START_MS + late_ms)
    return queue


def test_a_new_producer_has_the_place_of_the_longest_idle_one(three_producers: SortedLog) -> None:
    queue = three_producers
    now_ms = START_MS + DEDUPE_MS + 1
    answers = queue.cycle(numbered(1, producer="d"), numbered(1, 2, producer="b"), now_ms=now_ms)
    assert [type(answer) for answer in answers] == [Accepted, Original, Accepted]
    assert sorted(queue.rows) == ["b", "c", "d"]


def test_no_producer_is_forgotten_within_the_dedupe_window(three_producers: SortedLog) -> None:
    queue = three_producers
    answers = queue.cycle(numbered(1, 2, producer="d"), now_ms=START_MS + DEDUPE_MS)
    for answer in answers:
        assert isinstance(answer, Overloaded)
        assert "3 producers" in answer.detail and "PRODUCERS_PER_PARTITION_MAX" in answer.detail
        assert f"{DEDUPE_MS} ms ago" in answer.detail and answer.retry_after_ms == 1
    assert sorted(queue.rows) == ["a", "b", "c"]
    assert queue.sorter.counts.refused == 2


def test_no_producer_is_forgotten_while_something_of_it_waits(three_producers: SortedLog) -> None:
    queue = three_producers
    queue.sorter.configure(
        QueueConfig(sequencing="producer", sort_window_ms=10 * DEDUPE_MS, dedupe_window_ms=DEDUPE_MS)
    )
    queue.cycle(numbered(3, producer="a"), now_ms=START_MS)
    queue.cycle(numbered(2, producer="c"), now_ms=START_MS + 5)
    queue.cycle(numbered(1, producer="d"), now_ms=START_MS + 2 * DEDUPE_MS)
    assert sorted(queue.rows) == ["a", "c", "d"]


def test_the_longest_idle_one_is_known_over_a_restart(three_producers: SortedLog) -> None:
    queue = three_producers
    queue.cycle(numbered(2, producer="a"), now_ms=START_MS + 50)
    queue.rows = dict(sorted(queue.rows.items()))
    queue.restart(START_MS + DEDUPE_MS + 2)
    queue.cycle(numbered(1, producer="d"), now_ms=START_MS + DEDUPE_MS + 2)
    assert sorted(queue.rows) == ["a", "c", "d"]


def test_a_clock_set_back_over_a_restart_keeps_idle_producers_no_longer(three_producers: SortedLog) -> None:
    queue = three_producers
    queue.restart(START_MS - 10 * DEDUPE_MS)
    answer = queue.cycle(numbered(1, producer="d"), now_ms=START_MS - 10 * DEDUPE_MS)[0]
    assert isinstance(answer, Overloaded) and answer.retry_after_ms == DEDUPE_MS - 2 + 1


def test_a_producer_forgotten_and_back_within_one_cycle_begins_anew(three_producers: SortedLog) -> None:
    queue = three_producers
    now_ms = START_MS + 2 * DEDUPE_MS
    queue.cycle(numbered(1, producer="d"), numbered(2, producer="a"), now_ms=now_ms)
    assert sorted(queue.rows) == ["a", "c", "d"]
    assert queue.sorter.held == 1
    queue.cycle(now_ms=now_ms + WINDOW_MS)
    assert numbers(queue) == [1, 1, 1, 1, 2]


# ------------------------------------------------------------------------------------------------------ restarts


def test_what_changed_is_stored_and_nothing_else() -> None:
    sorter = ByProducer(config("producer", sort_window_ms=WINDOW_MS), "orders")
    arrivals = [*numbered(1, 2), *numbered(3, producer="q")]
    sorter.add(sorter.decide(arrivals, START_MS), [7, 8, 9])
    assert sorter.release(START_MS) == [7, 8]
    assert sorter.records() == [
        ProducerAdvanced("p", 2, START_MS, (), ((1, 7, 2),)),
        ProducerAdvanced("q", 0, START_MS, (), ((3, 9, 1),)),
    ]
    assert sorter.release(START_MS + 1) == [] and sorter.records() == []
    assert sorter.release(START_MS + WINDOW_MS) == [9]
    assert sorter.records() == [ProducerAdvanced("q", 3, START_MS, ((1, 2),), ((3, 9, 1),))]


def test_a_forgotten_producers_row_goes(three_producers: SortedLog) -> None:
    sorter = three_producers.sorter
    sorter.add(sorter.decide(numbered(1, producer="d"), START_MS + 2 * DEDUPE_MS), [50])
    assert ProducerForgotten("a") in sorter.records()


def test_a_gap_is_waited_for_over_a_restart_and_no_longer_than_without() -> None:
    queue = log()
    queue.cycle(numbered(1, 3), now_ms=START_MS)
    queue.restart(START_MS + 700)
    assert queue.sorter.next_release_ms() == START_MS + WINDOW_MS
    assert queue.cycle(numbered(3, 1), now_ms=START_MS + 700) == [Original(1), Original(0)]
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    queue.restart(START_MS + WINDOW_MS)
    assert late(queue.cycle(numbered(2), now_ms=START_MS + WINDOW_MS)) == [True]
    queue.restart(START_MS + WINDOW_MS)
    assert queue.cycle(numbered(2), now_ms=START_MS + WINDOW_MS) == [Original(2)]
    assert numbers(queue) == [1, 3]


def test_a_clock_set_back_over_a_restart_makes_no_gap_wait_longer() -> None:
    queue = log()
    queue.cycle(numbered(2), now_ms=START_MS)
    queue.restart(START_MS - DEDUPE_MS)
    assert queue.sorter.next_release_ms() == START_MS - DEDUPE_MS + WINDOW_MS


def test_a_message_that_had_its_turn_and_was_not_released_has_it_after_a_restart() -> None:
    sorter = ByProducer(config("producer"), "orders")
    sorter.add(sorter.decide([*numbered(1, 2), None], START_MS), range(3))
    again = ByProducer(config("producer"), "orders")
    held = [(0, Stamp(0, "p", 1), START_MS), (1, Stamp(0, "p", 2), START_MS), (2, None, START_MS)]
    again.restore(sorter.records(), [Held(*each) for each in held], START_MS)
    assert again.held_from(9) == 0 and again.next_release_ms() == 0
    assert again.release(START_MS) == [0, 1, 2]


def test_a_held_message_that_nothing_is_missing_before_has_its_turn_after_a_restart() -> None:
    sorter = ByProducer(config("producer"), "orders")
    stamps = [stamp for stamp in numbered(2, 1, 4) if stamp is not None]
    sorter.restore([], [Held(offset, stamp, START_MS) for offset, stamp in enumerate(stamps)], START_MS)
    assert sorter.release(START_MS) == [1, 0]
    assert sorter.decide(numbered(2), START_MS).repeats == [0]


def test_messages_of_a_producer_whose_row_is_lost_are_released_in_order() -> None:
    queue = log()
    queue.cycle(numbered(2, 4), now_ms=START_MS)
    queue.rows.clear()
    queue.restart(START_MS + 5)
    queue.cycle(numbered(1), now_ms=START_MS + 6)
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    assert numbers(queue) == [1, 2, 4]
