"""How far a stream's reader goes in each partition: past an opening only when it stands at the seal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.partitions.slot_history import Barrier, may_read, standing


def test_a_reader_goes_to_its_next_message_or_the_end() -> None:
    assert standing({0: 7, 1: 90}, {0: 3, 1: 90}, {0: [], 1: []}) == {0: 7, 1: 90}


def test_an_opening_holds_it_back_until_it_stands_at_the_seal() -> None:
    barriers = {0: [], 1: [Barrier(opened_at=5, source=0, sealed_at=20)]}
    assert standing({0: 19, 1: 6}, {0: 19, 1: 0}, barriers) == {0: 19, 1: 5}
    assert standing({0: 20, 1: 6}, {0: 19, 1: 0}, barriers) == {0: 20, 1: 6}, "nothing is left before the seal"


def test_an_opening_behind_it_was_passed_before() -> None:
    barriers = {0: [], 1: [Barrier(opened_at=5, source=0, sealed_at=20)]}
    assert standing({0: 3, 1: 9}, {0: 3, 1: 6}, barriers) == {0: 3, 1: 9}


def test_a_partition_that_has_gone_holds_nobody_back() -> None:
    assert standing({1: 6}, {1: 0}, {1: [Barrier(5, 0, 20)]}) == {1: 6}


def test_a_slot_that_went_on_before_it_had_a_message_passes_the_wait_on() -> None:
    """From 0 to 1, and from 1 to 2 with nothing stored in 1: what is in 2 is newer than what is in 0."""
    barriers = {0: [], 1: [Barrier(5, 0, 20)], 2: [Barrier(3, 1, 8)]}
    places = {0: 0, 1: 0, 2: 0}
    assert standing({0: 19, 1: 30, 2: 4}, places, barriers) == {0: 19, 1: 5, 2: 3}
    assert standing({0: 20, 1: 30, 2: 4}, places, barriers) == {0: 20, 1: 30, 2: 4}


places = st.integers(0, 30)
barriers = st.lists(st.builds(Barrier, places, st.integers(0, 2), places), max_size=4).map(sorted)


@given(
    st.lists(places, min_size=3, max_size=3), st.lists(places, min_size=3, max_size=3), st.lists(barriers, min_size=3)
)
def test_wherever_it_stands_it_was_allowed_to_go(
    places: list[int], steps: list[int], barriers: list[list[Barrier]]
) -> None:
    at, ahead = (
        dict(enumerate(places)),
        {n: place + step for n, (place, step) in enumerate(zip(places, steps, strict=True))},
    )
    stands = standing(ahead, at, dict(enumerate(barriers[:3])))
    for number, stand in stands.items():
        assert at[number] <= stand <= ahead[number]
        passed = [one for one in barriers[number] if at[number] <= one.opened_at < stand]
        assert may_read(passed, stand, stands)
