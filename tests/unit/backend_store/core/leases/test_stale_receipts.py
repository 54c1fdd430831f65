"""Receipts of what was given back: from which message on those of a lease are stale."""

from __future__ import annotations

from backend_store.core.leases.stale_receipts import GivenBack, GivenBacks, given_back, stale_from


def after(*given: tuple[int, int], position: int = 0) -> GivenBacks:
    known: GivenBacks = ()
    for offset, last_lease in given:
        known = given_back(known, GivenBack(offset, last_lease), position=position)
    return known


def test_receipts_are_stale_from_what_was_given_back_on_and_later_ones_are_not() -> None:
    known = after((5, 3))
    assert (stale_from(known, 1), stale_from(known, 3), stale_from(known, 4)) == (5, 5, None)


def test_each_lease_has_the_lowest_message_that_was_given_back_since() -> None:
    known = after((5, 3), (8, 6))
    assert [stale_from(known, lease) for lease in (3, 4, 6, 7)] == [5, 8, 8, None]
    assert after((5, 3), (8, 6), (4, 9)) == (GivenBack(4, 9),)


def test_what_the_group_is_past_takes_one_place() -> None:
    known = after(*((offset, 2 * offset) for offset in range(1000)), position=990)
    assert len(known) == 10 and stale_from(known, 1) == 990
    assert stale_from(known, 1998) == 999
