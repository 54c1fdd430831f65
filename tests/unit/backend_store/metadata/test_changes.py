"""The log of changes: whoever was away hears exactly what it missed, or that it must doubt everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend_store.metadata.changes import Change, ChangeLog, Moment
from backend_store.metadata.limits import CHANGES_KEPT_MAX, CHANGES_PER_TURN_MAX


def change(number: int) -> Change:
    return Change("queue", f"q{number}", "default")


def test_whoever_holds_nothing_is_only_told_the_time() -> None:
    log = ChangeLog("era")
    log.add(change(1))
    news = log.since(None)
    assert (news.now, news.changes, news.is_reset) == (Moment("era", 1), [], False)


@given(before=st.integers(0, 30), after=st.integers(0, 30))
def test_whoever_was_away_hears_exactly_what_it_missed(before: int, after: int) -> None:
    log = ChangeLog("era")
    for number in range(before):
        log.add(change(number))
    away_since = log.now
    for number in range(before, before + after):
        log.add(change(number))
    news = log.since(away_since)
    assert (news.now, news.is_reset) == (log.now, False)
    assert news.changes == [change(number) for number in range(before, before + after)]


def test_many_changes_are_told_a_turn_at_a_time() -> None:
    log = ChangeLog("era")
    start = log.now
    for number in range(CHANGES_PER_TURN_MAX + 5):
        log.add(change(number))
    first = log.since(start)
    second = log.since(first.now)
    assert (len(first.changes), len(second.changes), second.now) == (CHANGES_PER_TURN_MAX, 5, log.now)


def test_a_moment_that_the_log_no_longer_covers_is_a_reset() -> None:
    log = ChangeLog("era")
    start = log.now
    for number in range(CHANGES_KEPT_MAX + 1):
        log.add(change(number))
    assert log.since(start).is_reset
    assert not log.since(Moment("era", 1)).is_reset


def test_a_moment_of_another_era_or_of_the_future_is_a_reset() -> None:
    log = ChangeLog("era")
    assert log.since(Moment("before", 0)).is_reset
    assert log.since(Moment("era", 1)).is_reset


def test_listeners_hear_of_each_change_until_they_leave() -> None:
    log = ChangeLog("era")
    heard: list[int] = []

    def told() -> None:
        heard.append(log.now.revision)

    log.listen(told)
    log.add(change(1))
    log.unlisten(told)
    log.add(change(2))
    assert heard == [1]
