"""Times along a lane's log."""

from backend_store.core.host_lanes.limits import CLOSED_EVERY_MS
from backend_store.core.host_lanes.stamping import LaneStamps

NOW_US = 1_800_000_000_000_000
SECOND_US = 1_000_000


def _next(stamps: LaneStamps, now_us: int, count: int = 1) -> list[int]:
    return list(stamps.span(count, now_us=now_us, steady_ms=0))


def test_times_follow_the_clock_and_differ_within_a_millisecond() -> None:
    stamps = LaneStamps()
    assert _next(stamps, NOW_US, 3) == [NOW_US, NOW_US + 1, NOW_US + 2]
    assert _next(stamps, NOW_US + 5_000) == [NOW_US + 5_000]


def test_times_rise_when_the_clock_is_set_back() -> None:
    stamps = LaneStamps()
    _next(stamps, NOW_US)
    assert _next(stamps, NOW_US - 60 * SECOND_US, 2) == [NOW_US + 1, NOW_US + 2]


def test_an_adopter_with_a_slower_clock_goes_on_above_all_that_it_inherits() -> None:
    assert _next(LaneStamps(NOW_US), NOW_US - 3 * SECOND_US) == [NOW_US + 1]


def test_times_go_on_after_the_seal_of_slots_that_came_from_another_lane() -> None:
    stamps = LaneStamps()
    _next(stamps, NOW_US)
    stamps.go_on_after(NOW_US + SECOND_US)
    assert _next(stamps, NOW_US + 1_000) == [NOW_US + SECOND_US + 1]


def test_times_go_on_after_what_was_seen_of_other_lanes_unless_it_is_too_far_ahead() -> None:
    stamps = LaneStamps()
    stamps.notice(NOW_US + 200_000, NOW_US)
    assert _next(stamps, NOW_US)[0] > NOW_US + 200_000
    stamps.notice(NOW_US + 10 * SECOND_US, NOW_US)
    assert _next(stamps, NOW_US)[0] < NOW_US + SECOND_US


def test_an_idle_lane_writes_the_time_down_unless_something_is_on_its_way_to_commit() -> None:
    stamps = LaneStamps()
    stamps.span(1, now_us=NOW_US, steady_ms=1_000)
    assert not stamps.closes(1_000 + CLOSED_EVERY_MS - 1, is_committed=True)
    assert stamps.closes(1_000 + CLOSED_EVERY_MS, is_committed=True)
    assert not stamps.closes(60_000, is_committed=False)
