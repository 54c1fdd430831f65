"""How lanes change their owners."""

import pytest

from backend_store.core.host_lanes.adoption import adopted, adopters, handed_over, is_alive, with_in_sync
from backend_store.core.host_lanes.table import LaneTable, Owner, first_lanes
from backend_store.model import Conflict, Epoch

ALIVE = {"a": 1, "b": 1, "c": 1}
OWNER = Owner("a", 1)


def _table() -> LaneTable:
    return adopted(first_lanes({"": ["a", "b", "c"]}, min_in_sync=2), 0, "a", ALIVE)


def _with(table: LaneTable, *members: str) -> LaneTable:
    return with_in_sync(table, 0, OWNER, table.lanes[0].version, members)


def test_a_host_takes_its_own_lane_by_its_first_adoption() -> None:
    lane = _table().lanes[0]
    assert (lane.owner, lane.epoch, lane.is_home) == (OWNER, 1, True)


def test_a_lane_is_not_adopted_while_its_owner_is_alive() -> None:
    with pytest.raises(Conflict, match="its owner is alive"):
        adopted(_table(), 0, "b", ALIVE)


def test_an_adopter_begins_the_next_epoch_and_the_dead_are_out_of_sync() -> None:
    lane = adopted(_table(), 0, "b", {"b": 1, "c": 1}).lanes[0]
    assert (lane.owner, lane.epoch, lane.in_sync, lane.is_home) == (Owner("b", 1), 2, ("b", "c"), False)


def test_an_owner_that_started_anew_is_not_the_owner_and_may_adopt_its_lane() -> None:
    alive = {**ALIVE, "a": 2}
    assert not is_alive(OWNER, alive)
    assert adopters(_table().lanes[0], alive)[0] == "a"
    assert adopted(_table(), 0, "a", alive).lanes[0].owner == Owner("a", 2)


def test_a_holder_that_is_not_in_sync_may_not_adopt() -> None:
    table = _with(_table(), "a", "b")
    with pytest.raises(Conflict, match=r"adopters are \[\]"):
        adopted(table, 0, "c", {"c": 1})


def test_who_was_in_sync_when_the_minimum_went_may_adopt_and_who_was_dropped_before_may_not() -> None:
    table = _with(_with(_table(), "a", "b"), "a")
    assert table.lanes[0].eligible == ("b",)
    assert adopters(table.lanes[0], {"b": 1, "c": 1}) == ["b"]


def test_nobody_is_eligible_once_the_minimum_is_in_sync_again() -> None:
    table = _with(_with(_with(_table(), "a", "b"), "a"), "a", "c")
    assert table.lanes[0].eligible == () and adopters(table.lanes[0], {"b": 1}) == []


def test_who_adopts_as_eligible_leaves_those_in_sync_before_it_eligible() -> None:
    table = adopted(_with(_with(_table(), "a", "b"), "a"), 0, "b", {"b": 1})
    assert (table.lanes[0].in_sync, table.lanes[0].eligible) == (("b",), ("a",))


def test_a_lane_is_handed_home_in_the_next_epoch() -> None:
    table = adopted(_table(), 0, "b", {"b": 1, "c": 1})
    table = with_in_sync(table, 0, Owner("b", 1), table.lanes[0].version, ["a", "b", "c"])
    lane = handed_over(table, 0, Owner("b", 1), Epoch(2), "a", {**ALIVE, "a": 2}).lanes[0]
    assert (lane.owner, lane.epoch, lane.is_home) == (Owner("a", 2), 3, True)


def test_a_lane_is_handed_to_nobody_who_is_dead_or_out_of_sync() -> None:
    table = _with(_table(), "a", "b")
    for target, alive in [("c", ALIVE), ("b", {"a": 1, "c": 1})]:
        with pytest.raises(Conflict, match="is not in sync"):
            handed_over(table, 0, OWNER, Epoch(1), target, alive)


def test_a_handover_of_an_epoch_that_is_over_is_refused_also_from_the_same_owner() -> None:
    table = handed_over(_table(), 0, OWNER, Epoch(1), "a", ALIVE)
    with pytest.raises(Conflict, match="is over"):
        handed_over(table, 0, OWNER, Epoch(1), "b", ALIVE)


def test_an_ask_by_an_older_row_is_refused_also_where_the_row_looks_the_same() -> None:
    table = _table()
    seen = table.lanes[0].version
    table = _with(_with(table, "a", "b"), "a", "b", "c")
    with pytest.raises(Conflict, match="read it again"):
        with_in_sync(table, 0, OWNER, seen, ["a", "b"])


def test_only_the_owner_says_who_is_in_sync_and_always_itself_with_holders() -> None:
    table = _table()
    with pytest.raises(Conflict):
        with_in_sync(table, 0, Owner("b", 1), table.lanes[0].version, ["a", "b"])
    for members in (["b", "c"], ["a", "d"]):
        with pytest.raises(Conflict, match="the owner and other holders"):
            with_in_sync(table, 0, OWNER, table.lanes[0].version, members)
