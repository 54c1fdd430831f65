"""What happened, told by the coordinator's revisions."""

from __future__ import annotations

from backend_store.metadata.changes import Change, Moment
from backend_store.metadata.directory.core.history import History
from backend_store.metadata.limits import CHANGES_KEPT_MAX, CHANGES_PER_TURN_MAX

A, B = Change("tenant", "a"), Change("tenant", "b")


def history(at: int = 10) -> History:
    made = History()
    made.begin("era", at)
    return made


def test_two_hosts_that_began_at_different_times_tell_the_same_from_a_common_moment() -> None:
    early, late = history(10), history(20)
    for one in (early, late):
        one.add(21, [A])
        one.add(22, [])
        one.add(23, [B])
    assert early.since(Moment("era", 21)) == late.since(Moment("era", 21))
    assert late.since(Moment("era", 21)).changes == [B]
    assert late.since(Moment("era", 15)).is_reset and not early.since(Moment("era", 15)).is_reset


def test_who_is_ahead_of_a_host_is_told_nothing_until_that_has_caught_up() -> None:
    behind = history(10)
    assert not behind.has_reached(Moment("era", 12))
    behind.add(12, [])
    assert behind.has_reached(Moment("era", 12))
    assert behind.since(Moment("era", 12)).changes == []
    assert behind.since(Moment("era", 12)).now == Moment("era", 12), "nobody is sent back in time"


def test_a_revision_is_told_whole_however_long_a_turn_is() -> None:
    one = history(0)
    one.add(1, [Change("tenant", str(n)) for n in range(CHANGES_PER_TURN_MAX - 1)])
    one.add(2, [A, B])
    one.add(3, [A])
    first = one.since(Moment("era", 0))
    assert first.now.revision == 2 and first.changes[-2:] == [A, B]
    assert one.since(first.now).changes == [A]


def test_what_is_no_longer_kept_is_a_reset_and_a_revision_is_kept_whole() -> None:
    one = history(0)
    one.add(1, [A, B])
    for number in range(CHANGES_KEPT_MAX - 1):
        one.add(2 + number, [A])
    assert one.since(Moment("era", 0)).is_reset and not one.since(Moment("era", 1)).is_reset


def test_a_new_beginning_makes_everybody_doubt() -> None:
    one = history(0)
    one.add(5, [A])
    one.begin("era", 9)
    assert one.since(Moment("era", 5)).is_reset and one.since(Moment("era", 9)).changes == []
    assert one.since(Moment("other", 9)).is_reset
