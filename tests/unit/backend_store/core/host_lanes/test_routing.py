"""What a host does with a send."""

from collections.abc import Collection

from backend_store.core.host_lanes.adoption import adopted
from backend_store.core.host_lanes.routing import (
    AppendTo,
    Behind,
    ForwardTo,
    Moved,
    Refused,
    Route,
    Send,
    Standing,
    route,
)
from backend_store.core.host_lanes.table import LaneTable, first_lanes
from backend_store.core.partitions.slots import moved, with_opened

HOSTS = ("a", "b", "c")
ALIVE = {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}


def _table(*, adopts: dict[int, str] | None = None) -> LaneTable:
    table = first_lanes({"east": HOSTS, "west": ["e"]}, min_in_sync=1)
    for number, lane in table.lanes.items():
        host = (adopts or {}).get(number, lane.preferred)
        alive = {name: one for name, one in ALIVE.items() if host == lane.preferred or name != lane.preferred}
        table = adopted(table, number, host, alive)
    return table


def _route(
    table: LaneTable,
    host: str,
    slot: int | None,
    *,
    forwards: int = 0,
    version: int = 1,
    can_commit: bool = True,
    alive: Collection[str] = HOSTS,
    turn: int = 0,
) -> Route:
    standing = Standing(host, "east", lambda _: can_commit, alive)
    return route(table, Send(slot, version, forwards), standing, turn=turn)


def test_an_unkeyed_send_goes_into_the_lane_of_whoever_took_it() -> None:
    assert [_route(_table(), host, None) for host in HOSTS] == [AppendTo(0), AppendTo(1), AppendTo(2)]


def test_a_host_without_a_lane_passes_unkeyed_sends_to_the_holders_by_turns() -> None:
    assert [_route(_table(), "d", None, turn=turn) for turn in range(3)] == [ForwardTo(host) for host in HOSTS]


def test_a_host_that_cannot_commit_passes_an_unkeyed_send_on_once_and_then_refuses_it() -> None:
    assert _route(_table(), "a", None, can_commit=False) == ForwardTo("b")
    assert isinstance(_route(_table(), "a", None, can_commit=False, forwards=1), Refused)


def test_nothing_is_passed_to_hosts_that_are_not_there() -> None:
    assert _route(_table(), "a", None, can_commit=False, alive=["a", "c"]) == ForwardTo("c")
    assert isinstance(_route(_table(), "a", None, can_commit=False, alive=["a"]), Refused)


def test_an_adopted_lane_takes_no_unkeyed_sends() -> None:
    table = _table(adopts={1: "a"})
    assert _route(table, "a", None) == AppendTo(0)
    assert _route(table, "b", None) == ForwardTo("a")  # come back, and its lane not yet handed back
    assert _route(table, "d", None, turn=1) == ForwardTo("c")


def test_a_keyed_send_goes_to_its_home_lane_whichever_host_took_it() -> None:
    assert [_route(_table(), host, 2) for host in (*HOSTS, "d")] == [*[ForwardTo("c")] * 2, AppendTo(2), ForwardTo("c")]


def test_a_keyed_send_goes_to_whoever_has_adopted_its_home_lane() -> None:
    assert _route(_table(adopts={2: "a"}), "a", 2) == AppendTo(2)


def test_a_home_lane_that_cannot_commit_refuses_for_no_other_lane_may_decide() -> None:
    assert isinstance(_route(_table(), "c", 2, can_commit=False), Refused)


def test_a_keyed_send_that_was_passed_on_to_the_wrong_host_is_not_passed_on_again() -> None:
    assert _route(_table(), "a", 2, forwards=1) == Moved(1, "east")


def test_a_slot_on_the_move_is_refused_until_it_has_arrived() -> None:
    table = _table()
    table = table.with_slots(moved(table.slots, [2], 0))
    assert isinstance(_route(table, "a", 2), Refused)
    [move] = table.slots.moves
    assert _route(table.with_slots(with_opened(table.slots, move)), "a", 2) == AppendTo(0)


def test_a_sender_is_told_which_cluster_a_slot_moved_to_and_by_which_table() -> None:
    table = _table()
    table = table.with_slots(moved(table.slots, [2], 3))
    [move] = table.slots.moves
    assert _route(table.with_slots(with_opened(table.slots, move)), "c", 2) == Moved(3, "west")


def test_a_host_that_is_behind_its_sender_reads_the_table_first() -> None:
    assert _route(_table(), "a", 2, version=2) == Behind(2)


def test_a_lane_without_an_owner_takes_nothing() -> None:
    table = first_lanes({"east": HOSTS}, min_in_sync=1)
    assert isinstance(_route(table, "a", 2), Refused) and isinstance(_route(table, "a", None), Refused)
