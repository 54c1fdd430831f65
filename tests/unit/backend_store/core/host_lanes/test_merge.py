"""One order of time over lanes."""

from typing import Any

import pytest

from backend_store.core.host_lanes.merge import LaneEntry, Late, Merge, Merged, MergePlace

SECOND_US = 1_000_000


def _merge(lanes: int = 2, *, is_strict: bool = False, held_max: int = 100, place: MergePlace | None = None) -> Merge:
    start = place or MergePlace(0, dict.fromkeys(range(lanes), 0))
    return Merge(start, now_ms=0, is_strict=is_strict, window_ms=1_000, held_max=held_max)


class _Feed:
    """Lanes that are read entry by entry."""

    def __init__(self, merge: Merge):
        self.merge = merge

    def __call__(self, lane: int, time_us: int, message: Any = None, *, now_ms: int = 0, left: int = 0) -> list[Late]:
        offset = self.merge.wants(lane)
        assert offset is not None
        entry = LaneEntry(offset, time_us, message)
        return self.merge.take(lane, [entry], end=offset + 1 + left, now_ms=now_ms)

    def out(self, now_ms: int = 0) -> list[Any]:
        return [one.message for one in self.merge.advance(now_ms)]


def test_messages_come_out_by_time_when_nothing_older_can_come() -> None:
    feed = _Feed(_merge())
    feed(0, 10, "a")
    feed(0, 30, "c")
    assert feed.out() == []
    feed(1, 20, "b")
    assert feed.out() == ["a", "b"]
    feed(1, 40)
    assert feed.out() == ["c"]


def test_messages_of_one_time_come_out_by_lane() -> None:
    feed = _Feed(_merge())
    feed(1, 10, "b")
    feed(0, 10, "a")
    assert feed.out() == ["a", "b"]


def test_an_idle_lane_that_writes_the_time_down_holds_nobody_up() -> None:
    feed = _Feed(_merge())
    feed(0, 10, "a")
    feed(1, 11)
    assert feed.out() == ["a"]


def test_entries_come_in_once_and_without_a_gap() -> None:
    merge = _merge()
    merge.take(0, [LaneEntry(0, 10, "a"), LaneEntry(2, 30, "c")], end=3, now_ms=0)
    merge.take(0, [LaneEntry(0, 10, "a"), LaneEntry(1, 20, "b")], end=3, now_ms=0)
    assert merge.wants(0) == 2


def test_a_silent_lane_is_left_out_and_what_it_brings_below_the_watermark_is_late() -> None:
    feed = _Feed(_merge())
    feed(1, 5, "first")
    for now_ms in (0, 500, 1_000):
        feed(0, 10 + now_ms, now_ms, now_ms=now_ms)
    assert feed.out(1_000) == ["first", 0, 500, 1_000] and feed.merge.left_out == [1]
    [late] = feed(1, 20, "slow", now_ms=1_100)
    assert late == Late(Merged(20, 1, 1, "slow"), 990) and feed.merge.late_total == 1


def test_a_lane_is_let_in_again_when_it_has_closed_what_was_passed() -> None:
    feed = _Feed(_merge())
    for now_ms in (0, 500, 1_000):
        feed(0, 10 + now_ms, now_ms=now_ms)
    feed.out(1_000)
    feed(1, 1_009, now_ms=1_100)
    feed.out(1_100)
    assert feed.merge.left_out == [1]
    feed(1, 1_010, now_ms=1_200)
    feed(0, 1_500, "next", now_ms=1_200)
    assert feed.out(1_200) == [] and feed.merge.left_out == []


def test_a_strict_merge_waits_for_a_silent_lane() -> None:
    feed = _Feed(_merge(is_strict=True))
    for now_ms in (0, 500, 1_000, 60_000):
        feed(0, 10 + now_ms, now_ms, now_ms=now_ms)
    assert feed.out(60_000) == [] and feed.merge.next_wakeup_ms() is None
    feed(1, 20, "slow", now_ms=60_100)
    assert feed.out(60_100) == [0, "slow"]


def test_a_reader_that_hears_nobody_leaves_nobody_out() -> None:
    feed = _Feed(_merge())
    feed(0, 10, "a")
    assert feed.out(60_000) == [] and feed.merge.left_out == []


def test_a_lane_whose_clock_lies_back_further_than_the_window_is_left_out_once_it_is_read_to_its_end() -> None:
    feed = _Feed(_merge(3))
    feed(0, 9 * SECOND_US, "a")
    feed(1, 9 * SECOND_US, "b")
    feed(2, 2 * SECOND_US, "old", left=5)
    assert feed.out() == ["old"] and feed.merge.left_out == []
    feed(2, 3 * SECOND_US, "older than all")
    assert feed.out() == ["older than all", "a", "b"] and feed.merge.left_out == [2]


def test_a_lane_whose_clock_runs_ahead_waits_and_leaves_nobody_out() -> None:
    feed = _Feed(_merge(3))
    feed(0, 9 * SECOND_US, "ahead")
    feed(1, 20, "b")
    feed(2, 30, "c")
    assert feed.out() == ["b"] and feed.merge.left_out == []


def test_a_full_merge_reads_only_the_lane_that_holds_it_up() -> None:
    feed = _Feed(_merge(held_max=2))
    for time_us in (10, 20):
        feed(0, time_us, time_us)
    assert feed.merge.wants(0) is None and feed.merge.wants(1) == 0


def test_a_merge_goes_on_from_its_place_with_what_was_not_out() -> None:
    feed = _Feed(_merge())
    feed(0, 10, "a")
    feed(0, 30, "c")
    feed(1, 20, "b")
    assert feed.out() == ["a", "b"]
    again = _Feed(_merge(place=feed.merge.place))
    assert feed.merge.place == MergePlace(20, {0: 1, 1: 1}) and again.merge.wants(0) == 1
    again(0, 30, "c")
    again(1, 40)
    assert again.out() == ["c"]


def test_a_lane_in_which_time_stands_still_is_a_bug() -> None:
    feed = _Feed(_merge())
    feed(0, 10, "a")
    with pytest.raises(AssertionError, match="time stands still"):
        feed(0, 10, "b")
