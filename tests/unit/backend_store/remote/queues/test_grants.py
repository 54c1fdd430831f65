"""What a gateway grants a backend of one queue, by visibility time."""

from __future__ import annotations

import pytest

from backend_store.remote.limits import GRANT_IDLE_SECONDS, GRANTS_FORGOTTEN_AT_ONCE_MAX, GRANTS_KEPT
from backend_store.remote.queues.grants import Grants

LATER_S = GRANT_IDLE_SECONDS + 1


def nothing(visibility_ms: int) -> int:
    return 0


def served(grants: Grants, visibility_ms: int, now_s: float = 0.0) -> None:
    """One message was wanted, and came."""
    [(of, _, messages)] = grants.renew({visibility_ms: 1}, nothing, now_s)
    assert (of, messages) == (visibility_ms, 1)
    grants.came(visibility_ms, 1)
    assert grants.renew({}, nothing, now_s) == []


def test_what_is_granted_counts_what_has_come() -> None:
    grants = Grants()
    assert grants.renew({5: 3}, nothing, 0) == [(5, 3, 3)]
    assert grants.renew({5: 3}, nothing, 0) == [], "it is told once"
    grants.came(5, 2)
    assert grants.renew({5: 3}, lambda visibility_ms: 1, 0) == [(5, 4, 2)], "one has come that nobody has yet"
    assert grants.is_told(5, 4) and not grants.is_told(5, 3) and not grants.is_told(6, 0)


def test_what_nobody_wants_any_more_is_taken_back() -> None:
    grants = Grants()
    grants.renew({5: 3, 6: 1}, nothing, 0)
    grants.came(5, 1)
    assert sorted(grants.renew({}, nothing, 0)) == [(5, 1, 0), (6, 0, 0)]
    assert grants.renew({}, nothing, 0) == []


def test_what_comes_beyond_what_was_granted_counts() -> None:
    """It was on its way when it was taken back."""
    grants = Grants()
    grants.renew({5: 3}, nothing, 0)
    grants.renew({}, nothing, 0)
    grants.came(5, 2)
    assert grants.renew({5: 1}, nothing, 0) == [(5, 3, 1)]


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_where_few_are_wanted_each_of_them_is_granted(wanted: int) -> None:
    grants = Grants()
    grants.renew({5: wanted}, nothing, 0)
    grants.came(5, 1)
    assert grants.renew({5: wanted}, nothing, 0) == [(5, wanted + 1, wanted)]


def test_where_many_are_wanted_they_are_granted_in_parts() -> None:
    grants = Grants()
    grants.renew({5: 100}, nothing, 0)
    told = 0
    for _ in range(100):
        grants.came(5, 1)
        told += len(grants.renew({5: 100}, nothing, 0))
    assert told == 4


def test_visibility_times_that_nobody_asks_with_any_more_are_forgotten_oldest_first() -> None:
    grants = Grants()
    for visibility_ms in range(GRANTS_KEPT + 3):
        served(grants, visibility_ms)
    assert grants.forget(GRANT_IDLE_SECONDS - 1) == [], "what it was granted may be on its way"
    served(grants, 0, LATER_S)
    assert grants.forget(LATER_S) == list(range(1, GRANTS_FORGOTTEN_AT_ONCE_MAX + 1))
    assert grants.renew({1: 1, 0: 1}, nothing, LATER_S) in (
        [(1, 1, 1), (0, 3, 1)],
        [(0, 3, 1), (1, 1, 1)],
    ), "a count that ended begins anew"


def test_few_visibility_times_are_kept_for_ever() -> None:
    grants = Grants()
    for visibility_ms in range(GRANTS_KEPT):
        served(grants, visibility_ms)
    assert grants.forget(1e9) == []


def test_what_somebody_waits_for_is_not_forgotten() -> None:
    grants = Grants()
    assert len(grants.renew(dict.fromkeys(range(GRANTS_KEPT + 5), 1), nothing, 0)) == GRANTS_KEPT + 5
    assert grants.forget(LATER_S) == []
    grants.renew({}, nothing, 0)
    assert len(grants.forget(LATER_S)) == GRANTS_FORGOTTEN_AT_ONCE_MAX


def test_what_comes_after_its_count_ended_is_in_none() -> None:
    grants = Grants()
    for visibility_ms in range(GRANTS_KEPT + 1):
        served(grants, visibility_ms)
    assert grants.forget(LATER_S)[0] == 0
    grants.came(0, 7)
    assert grants.renew({0: 2}, nothing, LATER_S) == [(0, 2, 2)]


def test_what_comes_right_behind_the_word_that_the_queue_is_there_counts() -> None:
    """The backend had taken the queue over when what was granted before came: it counted, and here nobody did."""
    grants = Grants()
    assert grants.renew({5: 1}, nothing, 0) == [(5, 1, 1)]
    grants.begin_anew()
    grants.came(5, 1)
    assert grants.renew({5: 1}, nothing, 0) == [(5, 2, 1)]


def test_what_came_before_the_queue_was_let_go_of_does_not_count_when_it_is_back() -> None:
    grants = Grants()
    served(grants, 5)
    grants.begin_anew()
    assert grants.renew({5: 1}, nothing, 0) == [(5, 1, 1)]


def test_ever_new_visibility_times_leave_few_behind() -> None:
    grants = Grants()
    for number in range(20_000):
        now_s = number * 0.1
        served(grants, number, now_s)
        grants.forget(now_s)
    assert len(grants) <= 10 * GRANT_IDLE_SECONDS + GRANTS_KEPT
