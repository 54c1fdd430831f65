"""What both kinds of sorted queues promise, held against a reference that sorts everything anew each time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.limits import CLOCK_AHEAD_MS_MAX
from backend_store.core.reorder.sorter import NO_MESSAGE
from backend_store.model import Original, Stamp
from tests.support.sorted_log import START_MS, Accepted, Answer, SortedLog, config, make_sorter

Kind = Literal["producer", "clock"]
WINDOW_MS = 100

kinds = pytest.mark.parametrize("kind", ["producer", "clock"])


def stamp(ms: int, producer: str = "p", number: int = 1) -> Stamp:
    return Stamp((START_MS + ms) * 1000, producer, number)


# ----------------------------------------------------------------------------------------------------- reference


class Reference:
    """The rules in their plainest form; every question walks through all there ever was."""

    def __init__(self, kind: Kind):
        self.kind = kind
        self.log: list[tuple[Stamp, int, bool]] = []
        self.released: list[int] = []

    def cycle(self, stamps: Sequence[Stamp], now_ms: int) -> list[Answer]:
        answers = [self._clock(s, now_ms) if self.kind == "clock" else self._producer(s, now_ms) for s in stamps]
        while (offset := self._next(now_ms)) is not None:
            self.released.append(offset)
        return answers

    def _store(self, stamp: Stamp, now_ms: int, *, is_late: bool) -> Answer:
        self.log.append((stamp, now_ms, is_late))
        return Accepted(len(self.log) - 1, is_late)

    def _waiting(self) -> list[int]:
        return [n for n, (_, _, is_late) in enumerate(self.log) if not is_late and n not in self.released]

    # By clock.

    def _clock(self, stamp: Stamp, now_ms: int) -> Answer:
        top = max((self.log[n][0] for n in self.released), default=Stamp())
        if stamp.time_us // 1000 > now_ms + CLOCK_AHEAD_MS_MAX:
            return self._store(stamp._replace(time_us=now_ms * 1000), now_ms, is_late=False)
        return self._store(stamp, now_ms, is_late=stamp < top)

    # By producer. A cycle's messages are released one after the other, as they come.

    def _producer(self, stamp: Stamp, now_ms: int) -> Answer:
        for offset, (other, _, _) in enumerate(self.log):
            if other[1:] == stamp[1:]:
                return Original(offset)
        answer = self._store(stamp, now_ms, is_late=stamp.number <= self._last(stamp.producer))
        while (offset := self._follower()) is not None:
            self.released.append(offset)
        return answer

    def _last(self, producer: str) -> int:
        return max((s.number for s in (self.log[n][0] for n in self.released) if s.producer == producer), default=0)

    def _follower(self) -> int | None:
        for offset in self._waiting():
            stamp = self.log[offset][0]
            if stamp.number == self._last(stamp.producer) + 1:
                return offset
        return None

    def _next(self, now_ms: int) -> int | None:
        """What leaves next, if anything does."""
        waiting = self._waiting()
        if self.kind == "clock":
            first = min(waiting, key=lambda n: (self.log[n][0], n), default=None)
            return first if first is not None and self.log[first][0].time_us // 1000 + WINDOW_MS <= now_ms else None
        if (follower := self._follower()) is not None:
            return follower
        due = [n for n in waiting if self.log[n][1] + WINDOW_MS <= now_ms]
        if not due:
            return None
        producer = self.log[due[0]][0].producer
        return min((n for n in waiting if self.log[n][0].producer == producer), key=lambda n: self.log[n][0].number)


stamps = st.builds(
    lambda ms, producer, number: stamp(ms, producer, number),
    st.integers(-150, 150) | st.sampled_from([CLOCK_AHEAD_MS_MAX, CLOCK_AHEAD_MS_MAX + 1, 10**7, -(10**7)]),
    st.sampled_from("abc"),
    st.integers(1, 12),
)
steps = st.lists(
    st.tuples(st.integers(0, 60), st.lists(stamps, max_size=6), st.sampled_from([None, None, "crash", "restart"])),
    max_size=25,
)


@kinds
@given(steps=steps)
def test_a_sorted_queue_does_what_the_reference_does_whatever_crashes(
    kind: Kind, steps: list[tuple[int, list[Stamp], str | None]]
) -> None:
    queue, reference, now_ms = SortedLog(config(kind, sort_window_ms=WINDOW_MS)), Reference(kind), START_MS
    for wait_ms, relative, event in steps:
        now_ms += wait_ms
        arrivals = [each._replace(time_us=each.time_us + (now_ms - START_MS) * 1000) for each in relative]
        if event == "crash":
            queue.cycle(arrivals, now_ms=now_ms, crash="before the commit")
            continue
        half = len(arrivals) // 2
        answers = queue.cycle(arrivals[:half], arrivals[half:], now_ms=now_ms)
        assert answers == reference.cycle(arrivals, now_ms)
        assert [offset for offset, _ in queue.released] == reference.released
        assert queue.sorter.held == len(queue.waiting())
        if event == "restart":
            queue.restart(now_ms)


@kinds
@given(steps=steps)
def test_a_restart_changes_nothing_of_what_follows(
    kind: Kind, steps: list[tuple[int, list[Stamp], str | None]]
) -> None:
    queue, now_ms = SortedLog(config(kind, sort_window_ms=WINDOW_MS)), START_MS
    for wait_ms, arrivals, _ in steps:
        now_ms += wait_ms
        queue.cycle(arrivals, now_ms=now_ms)
        before, after = copy.deepcopy(queue.sorter), queue.restored(now_ms)
        assert (before.held, before.next_release_ms()) == (after.held, after.next_release_ms())
        assert before.release(now_ms + 50) == after.release(now_ms + 50)
        assert before.release_all(now_ms) == after.release_all(now_ms)
        assert before.records() == after.records()


# ----------------------------------------------------------------------------------------------------- contracts


@kinds
def test_deciding_changes_nothing(kind: Kind) -> None:
    queue = SortedLog(config(kind, sort_window_ms=WINDOW_MS))
    queue.cycle([stamp(0, number=1), stamp(0, number=3)], now_ms=START_MS)
    arrivals = [stamp(1, number=2), stamp(2, number=5), stamp(2, "q", 1), stamp(2, number=3)]
    first, second = (queue.sorter.decide(arrivals, START_MS) for _ in range(2))
    assert (first.late, first.repeats, first.refused) == (second.late, second.repeats, second.refused)
    assert queue.sorter.records() == [] and queue.sorter.counts.repeats == 0
    again = queue.restored(START_MS)
    assert queue.sorter.release_all(START_MS) == again.release_all(START_MS)


@kinds
def test_a_plain_decision_says_so(kind: Kind) -> None:
    sorter = make_sorter(config(kind))
    assert sorter.decide([stamp(0), stamp(0, number=2)], START_MS).is_plain
    full = make_sorter(config(kind, sort_held_messages_max=0))
    assert not full.decide([stamp(0, number=2)], START_MS).is_plain


@kinds
def test_what_waited_is_gone_after_a_purge_and_the_queue_goes_on(kind: Kind) -> None:
    queue = SortedLog(config(kind, sort_window_ms=WINDOW_MS))
    queue.cycle([stamp(0, number=2), stamp(1, number=4)], now_ms=START_MS)
    queue.sorter.purge()
    assert (queue.sorter.held, queue.sorter.held_from(9), queue.sorter.next_release_ms()) == (0, 9, None)
    answers = queue.cycle([stamp(2, number=5)], now_ms=START_MS + 2)
    assert answers == [Accepted(2, False)]
    queue.cycle(now_ms=START_MS + 2 + WINDOW_MS)
    assert [offset for offset, _ in queue.released] == [2]


def test_numbers_accepted_before_a_purge_are_still_known_after_it() -> None:
    queue = SortedLog(config("producer", sort_window_ms=WINDOW_MS))
    queue.cycle([stamp(0, number=1), stamp(0, number=3)], now_ms=START_MS)
    queue.sorter.purge()
    answers = queue.cycle([stamp(0, number=3), stamp(0, number=2), stamp(0, number=4)], now_ms=START_MS)
    assert answers == [Original(1), Accepted(2, True), Accepted(3, False)]


@kinds
def test_a_queue_that_is_sorted_no_longer_gives_everything_in_its_order(kind: Kind) -> None:
    queue = SortedLog(config(kind, sort_window_ms=WINDOW_MS))
    queue.cycle([stamp(9, number=9), stamp(5, number=5), stamp(7, number=7)], now_ms=START_MS)
    assert queue.sorter.release_all(START_MS + 1) == [1, 2, 0]
    assert queue.sorter.held == 0 and queue.sorter.counts.released == 3
    assert len(queue.sorter.records()) == 1


@kinds
def test_a_changed_window_holds_for_what_waits_already(kind: Kind) -> None:
    queue = SortedLog(config(kind, sort_window_ms=WINDOW_MS))
    queue.cycle([stamp(0, number=2)], now_ms=START_MS)
    for window_ms in (5000, 20):
        queue.sorter.configure(config(kind, sort_window_ms=window_ms))
        assert queue.sorter.next_release_ms() == START_MS + window_ms
    assert queue.sorter.release(START_MS + 20) == [0]


@kinds
def test_a_message_that_was_dropped_elsewhere_is_never_released(kind: Kind) -> None:
    sorter = make_sorter(config(kind, sort_window_ms=WINDOW_MS))
    decision = sorter.decide([stamp(0, number=1), stamp(0, number=2), stamp(0, number=4)], START_MS)
    sorter.add(decision, [NO_MESSAGE, 5, NO_MESSAGE])
    assert sorter.held_from(6) in (5, 6)
    assert sorter.release(START_MS + WINDOW_MS) == [5]
    assert (sorter.held, sorter.held_from(6)) == (0, 6)


@kinds
def test_everything_is_counted(kind: Kind) -> None:
    queue = SortedLog(config(kind, sort_window_ms=WINDOW_MS, sort_held_messages_max=2))
    queue.cycle([stamp(0, number=2), stamp(10**7, number=4), stamp(0, number=6)], now_ms=START_MS)
    queue.cycle(now_ms=START_MS + WINDOW_MS)
    queue.cycle([stamp(-1, number=1), stamp(-1, number=2)], now_ms=START_MS + WINDOW_MS)
    counts = queue.sorter.counts
    assert (counts.held, counts.released, counts.refused) == (2, 2, 1)
    clock = kind == "clock"
    assert (counts.late, counts.clamped) == ((2, 1) if clock else (1, 0))
    assert (counts.repeats, counts.gaps_given_up) == ((0, 0) if clock else (1, 2))
