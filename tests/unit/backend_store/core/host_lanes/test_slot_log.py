"""A lane's slots where commits come later."""

import pytest

from backend_store.core.host_lanes.slot_log import LaneSlots
from backend_store.core.partitions.slot_history import SlotRecord, first_book
from backend_store.core.partitions.slot_moves import Page
from backend_store.core.partitions.slots import Move, first_table, moved

START = first_table(2)
TABLE = moved(START, [0], 1)
MOVE: Move = TABLE.moves[0]


def _lane(number: int, records: list[tuple[int, SlotRecord]] | None = None, committed: int = 0) -> LaneSlots:
    keeper = LaneSlots(number, first_book(START, number), records or [], committed=committed, waits=True)
    keeper.heed(TABLE)
    return keeper


def _sealed(keeper: LaneSlots, at: int) -> SlotRecord:
    record = keeper.seal(MOVE, end=at, now_ms=1)
    assert record is not None
    keeper.appended(at)
    return record


def test_a_seal_is_obeyed_when_it_is_written_and_told_when_it_is_committed() -> None:
    source = _lane(0)
    _sealed(source, 5)
    assert source.refused(1, version=1)
    assert not source.committed_below(5) and source.hands_over(MOVE) is None
    assert source.committed_below(6) and source.hands_over(MOVE) is not None


def test_a_commit_takes_along_what_lies_below_it_and_nothing_above() -> None:
    target = _lane(1)
    target.fetch()
    fetch = target.importing
    assert fetch is not None
    opened = target.take(Page(fetch, 5, 1, (), ()), end=3)
    assert opened is not None
    target.appended(3)
    target.release(opened.version, opened.slots)
    target.appended(8)
    target.committed_below(5)
    assert target.opened_moves() == [MOVE] and target.questions()
    target.committed_below(9)
    assert not target.questions()


def test_an_adopter_obeys_what_it_inherits_and_tells_of_it_when_its_epoch_is_committed() -> None:
    record = _sealed(_lane(0), 5)
    adopter = _lane(0, [(5, record)], committed=4)
    assert adopter.refused(1, version=1) and adopter.hands_over(MOVE) is None
    adopter.committed_below(7)
    assert adopter.hands_over(MOVE) is not None


def test_an_adopter_without_the_tail_still_has_the_slot() -> None:
    assert not _lane(0).refused(1, version=1)


def test_a_lane_is_committed_up_to_an_offset_and_never_as_a_whole() -> None:
    with pytest.raises(AssertionError, match="up to an offset"):
        _lane(0).committed()
