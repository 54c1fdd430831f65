"""Troubles told one step after the other: those that worlds drawn from a seed meet too rarely to count on.

Each is played with the code under test and with the mutant that it is there for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend_store.core.partitions.slot_history import first_book
from backend_store.core.partitions.slots import first_table, moved
from backend_store.model import Conflict, Epoch
from tests.simulation.lanes.process import Core, Violation

ALIVE = {"a0": 1, "a1": 1, "a2": 1}


def _three_hosts(core: Core) -> Any:
    table = core.table.first_lanes({"a": ["a0", "a1", "a2"]}, min_in_sync=2)
    return core.adoption.adopted(table, 0, "a0", ALIVE)


def _refuses(what: Callable[[], Any], why: str) -> None:
    try:
        what()
    except Conflict:
        return
    raise Violation(why)


def the_last_two_in_sync_die_and_one_of_them_comes_back(core: Core) -> None:
    """Nothing was committed since it was dropped, so it has all there is: waiting for the other is not needed."""
    table = _three_hosts(core)
    owner = core.table.Owner("a0", 1)
    table = core.adoption.with_in_sync(table, 0, owner, table.lanes[0].version, ["a0", "a1"])
    table = core.adoption.with_in_sync(table, 0, owner, table.lanes[0].version, ["a0"])
    if core.adoption.adopters(table.lanes[0], {"a1": 2, "a2": 1}) != ["a1"]:
        raise Violation("the lane waits for a host, and another one has all that is committed")


def an_ask_for_a_holder_comes_after_it_fell_behind_again(core: Core) -> None:
    """The row looks as it did when the ask was sent, and much was committed meanwhile."""
    table = _three_hosts(core)
    owner, adoption = core.table.Owner("a0", 1), core.adoption
    table = adoption.with_in_sync(table, 0, owner, table.lanes[0].version, ["a0", "a1"])
    seen = table.lanes[0].version
    table = adoption.with_in_sync(table, 0, owner, seen, ["a0", "a1", "a2"])
    table = adoption.with_in_sync(table, 0, owner, table.lanes[0].version, ["a0", "a1"])
    late = table
    _refuses(lambda: adoption.with_in_sync(late, 0, owner, seen, ["a0", "a1", "a2"]), "who lags is in sync again")


def a_handover_comes_after_its_owner_has_gone_on(core: Core) -> None:
    """It was taken back, and the owner lends again: nobody may get the lane while it thinks so."""
    table = _three_hosts(core)
    owner, adoption = core.table.Owner("a0", 1), core.adoption
    table = adoption.handed_over(table, 0, owner, Epoch(1), "a0", ALIVE)
    _refuses(lambda: adoption.handed_over(table, 0, owner, Epoch(1), "a1", ALIVE), "an old handover was carried out")


def a_seal_is_asked_about_before_it_is_committed(core: Core) -> None:
    """The tail with the seal may vanish: then the lane has the slot still, and the other one as well."""
    start = first_table(2)
    table = moved(start, [0], 1)
    keeper = core.slot_log.LaneSlots(0, first_book(start, 0), waits=True)
    keeper.heed(table)
    [move] = table.moves
    keeper.seal(move, end=5, now_ms=1)
    keeper.appended(5)
    keeper.committed_below(5)
    if keeper.hands_over(move) is not None:
        raise Violation("ids are handed over behind a seal that may vanish")
    keeper.committed_below(6)
    assert keeper.hands_over(move) is not None


def _lender(core: Core, epoch: int, mode: str, *, is_strict: bool = False) -> Any:
    return core.lending.Lender(0, epoch, mode=mode, is_strict=is_strict)


def _lend(
    core: Core, lender: Any, agent: str, now_ms: int, *waiting: tuple[int, str | None], lease_ms: int = 10_000
) -> Any:
    ready = [core.lending.Waiting(*one) for one in waiting]
    return lender.lend(ready, agent, count=100, lease_ms=lease_ms, now_ms=now_ms, session_ends_ms=now_ms + 1)


def an_adopter_gives_back_the_lane_before_its_wait_is_over(core: Core) -> None:
    """What the owner before it lent may still be handed out by an agent that nobody knows of."""
    adopter = _lender(core, 2, "memory")
    adopter.inherit([], last_epoch=1, below=7, now_ms=1_000)
    record = adopter.hand_over(3_000)
    owner = _lender(core, 3, "memory")
    owner.inherit([(2, record)], last_epoch=2, below=9, now_ms=3_000)
    if _lend(core, owner, "a1", 9_000, (6, None)) is not None:
        raise Violation("a message is lent that an agent of the dead owner may still hand out")
    if _lend(core, owner, "a1", 9_000, (7, None)) is None:
        raise Violation("a message waits that nobody can have lent before")
    assert _lend(core, owner, "a1", 11_500, (6, None)) is not None


def a_lease_is_extended_and_its_owner_dies(core: Core) -> None:
    owner = _lender(core, 1, "replicated")
    lent = _lend(core, owner, "a1", 0, (3, None), lease_ms=1_000)
    extended = owner.extend(core.lending.LaneReceipt(lent.lease, 3), 60_000, 500)
    adopter = _lender(core, 2, "replicated")
    adopter.inherit([(1, lent), (1, extended)], last_epoch=1, below=9, now_ms=5_000)
    if _lend(core, adopter, "a2", 30_000, (3, None)) is not None:
        raise Violation("a message is lent that its holder has extended")
    assert _lend(core, adopter, "a2", 67_000, (3, None)) is not None


def two_clocks_go_wrong_by_a_hundredth_each(core: Core) -> None:
    """The agent's is slow, the owner's fast: ten seconds of the one last 10,101 ms, and the other counts 10,203."""
    owner = _lender(core, 1, "replicated")
    _lend(core, owner, "a1", 0, (3, None))
    if _lend(core, owner, "a2", 10_203, (3, None)) is not None:
        raise Violation("a message is lent while a slow clock's agent may hand it out")
    assert _lend(core, owner, "a2", 10_300, (3, None)) is not None


def an_owner_whose_session_is_over_is_asked_to_lend(core: Core) -> None:
    """It may have been deposed, and would not find out: to lend from memory it need not commit."""
    owner = _lender(core, 1, "memory")
    ready = [core.lending.Waiting(3, None)]
    if owner.lend(ready, "a1", count=1, lease_ms=1_000, now_ms=500, session_ends_ms=500) is not None:
        raise Violation("a lane is lent from by who may have been deposed")
    assert owner.lend(ready, "a1", count=1, lease_ms=1_000, now_ms=499, session_ends_ms=500) is not None


def a_key_goes_on_before_the_ack_is_committed(core: Core) -> None:
    """If the ack vanishes, the first message is delivered once more, beside the second one."""
    owner = _lender(core, 1, "replicated", is_strict=True)
    lent = _lend(core, owner, "a1", 0, (3, "k"), (4, "k"))
    assert lent.offsets == (3,)
    settled = owner.ack(core.lending.LaneReceipt(lent.lease, 3), key="k", is_there=True, now_ms=10)
    if (
        _lend(core, owner, "a2", 20, (3, "k"), (4, "k")) is not None
        or _lend(core, owner, "a2", 20, (4, "k")) is not None
    ):
        raise Violation("the next message of a key is lent before the ack of the first is committed")
    owner.committed(settled)
    assert _lend(core, owner, "a2", 30, (4, "k")).offsets == (4,)


def a_reader_stands_still_for_longer_than_the_window(core: Core) -> None:
    """It was deaf; the lanes were not dumb. The first that it hears of must not pass the others."""
    merge = core.merge.Merge(core.merge.MergePlace(0, {0: 0, 1: 0}), now_ms=0, is_strict=False)
    entry = core.merge.LaneEntry
    merge.take(0, [entry(0, 10, "one")], end=1, now_ms=10)
    merge.take(1, [entry(0, 11, "two")], end=1, now_ms=10)
    merge.advance(10)
    merge.advance(8_000)
    merge.take(0, [entry(1, 9_000_000, None)], end=2, now_ms=8_001)
    merge.advance(8_001)
    if merge.take(1, [entry(1, 5_000_000, "three")], end=2, now_ms=8_090):
        raise Violation("a message is late because its reader stood still")


def a_lane_runs_ahead_of_all_others(core: Core) -> None:
    """Its own messages wait; it leaves out nobody."""
    merge = core.merge.Merge(core.merge.MergePlace(0, {0: 0, 1: 0, 2: 0}), now_ms=0, is_strict=False)
    entry = core.merge.LaneEntry
    for lane, time_us in [(0, 5_000_000), (1, 1_000), (2, 1_001)]:
        merge.take(lane, [entry(0, time_us, lane)], end=1, now_ms=1)
    if [one.lane for one in merge.advance(2)] != [1] or merge.left_out:
        raise Violation("a clock that runs ahead leaves lanes out")


SCENARIOS: dict[str, Callable[[Core], None]] = {
    scenario.__name__: scenario
    for scenario in (
        the_last_two_in_sync_die_and_one_of_them_comes_back,
        an_ask_for_a_holder_comes_after_it_fell_behind_again,
        a_handover_comes_after_its_owner_has_gone_on,
        a_seal_is_asked_about_before_it_is_committed,
        an_adopter_gives_back_the_lane_before_its_wait_is_over,
        a_lease_is_extended_and_its_owner_dies,
        two_clocks_go_wrong_by_a_hundredth_each,
        an_owner_whose_session_is_over_is_asked_to_lend,
        a_key_goes_on_before_the_ack_is_committed,
        a_reader_stands_still_for_longer_than_the_window,
        a_lane_runs_ahead_of_all_others,
    )
}
