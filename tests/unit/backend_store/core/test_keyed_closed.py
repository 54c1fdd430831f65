"""Strict order by key over partitions: messages of a slot wait for older ones that lie in another partition."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backend_store.core.limits import KEYED_STUCK_MS
from backend_store.core.partitions.slots import slot_of
from backend_store.core.ready import key_queues
from tests.support.chunks import StrictLane


def closed(**offsets: int) -> Mapping[int, int]:
    """Key → offset from which on it waits; `_` stands for messages without a key."""
    return {slot_of("" if key == "_" else key): offset for key, offset in offsets.items()}


def drawn(lane: StrictLane) -> list[int]:
    """All that may be had now, each settled before the next."""
    came: list[int] = []
    while batch := lane.take():
        came += batch
        lane.settle(*batch)
    return came


def test_messages_of_a_closed_slot_wait_and_others_go() -> None:
    lane = StrictLane()
    lane.runs.close(closed(a=0))
    lane.push("aba")
    assert drawn(lane) == [1]
    lane.runs.close({})
    assert drawn(lane) == [0, 2]


def test_what_came_before_the_slot_did_is_delivered_and_then_the_key_waits() -> None:
    lane = StrictLane("aa")
    lane.runs.close(closed(a=2))
    lane.push("aab")
    assert drawn(lane) == [0, 1, 4]
    lane.runs.close({})
    assert drawn(lane) == [2, 3]


def test_a_key_that_is_held_when_its_slot_comes_again_stops_there() -> None:
    lane = StrictLane("a")
    assert lane.take() == [0]
    lane.runs.close(closed(a=1))
    lane.push("a")
    lane.settle(0)
    assert lane.take() == []
    lane.runs.close({})
    assert lane.take() == [1]


def test_one_slot_is_released_and_others_wait_on() -> None:
    lane = StrictLane()
    lane.runs.close(closed(a=0, b=0, _=0))
    lane.push("ab-ab-")
    assert drawn(lane) == []
    lane.runs.close(closed(a=0, _=0))
    assert drawn(lane) == [1, 4]
    lane.runs.close(closed(a=0))
    assert drawn(lane) == [2, 5]
    lane.runs.close({})
    assert drawn(lane) == [0, 3]


def test_a_slot_that_came_twice_is_released_in_parts() -> None:
    lane = StrictLane()
    lane.runs.close(closed(a=0))
    lane.push("aa")
    lane.push("aa")
    lane.runs.close(closed(a=2))
    assert drawn(lane) == [0, 1]
    lane.runs.close({})
    assert drawn(lane) == [2, 3]


def test_a_message_that_comes_back_goes_before_those_that_wait() -> None:
    lane = StrictLane("a")
    lane.runs.close(closed(a=1))
    lane.push("a")
    assert lane.take() == [0]
    lane.give_back(0)
    assert (lane.take(), lane.take()) == ([0], [])
    lane.runs.close({})
    assert lane.take() == []
    lane.settle(0)
    assert lane.take() == [1]


def test_messages_without_keys_are_one_slot() -> None:
    lane = StrictLane()
    lane.runs.close(closed(_=0))
    lane.push("--").keys = None
    assert drawn(lane) == []
    lane.runs.close({})
    assert drawn(lane) == [0, 1]


def test_what_is_settled_while_it_waits_is_passed_over() -> None:
    lane = StrictLane()
    lane.runs.close(closed(a=0))
    lane.push("aa")
    assert lane.take() == []
    lane.settle(0)
    lane.runs.close({})
    assert drawn(lane) == [1]


def test_a_purge_takes_what_waits_and_what_comes_after_it_waits_as_before() -> None:
    lane = StrictLane()
    lane.runs.close(closed(a=0))
    lane.push("ab")
    assert lane.take() == [1]
    lane.runs.clear()
    lane.states.clear()
    lane.push("ab")
    assert (lane.take(), lane.take()) == ([1], [])
    lane.runs.close({})
    assert lane.take() == [0]


def test_a_lease_from_before_a_restart_holds_its_key_and_then_the_slot_does() -> None:
    lane = StrictLane()
    lane.runs.close(closed(a=2))
    early, late = lane.push("aa"), lane.push("a")
    early.leased = 1
    lane.runs.hold(early, 1)
    assert lane.take() == []
    lane.settle(0)
    assert lane.take() == [1]
    lane.settle(1)
    assert lane.take() == [] and late.free
    lane.runs.close({})
    assert lane.take() == [2]


def test_what_waits_goes_to_the_disk_and_comes_back_when_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queues, "KEYED_RUNS_IN_MEMORY_MAX", 2)
    lane = StrictLane()
    lane.runs.close(closed(a=0))
    for _ in range(3):
        lane.push("a")
    assert lane.take() == []
    spilled = [lane.runs.take_spill(n * KEYED_STUCK_MS) for n in range(3)]
    rows = [row for spill in spilled if spill is not None for row in spill.rows]
    assert [row.base for row in rows] == [1, 2]
    lane.runs.spilled()
    assert (lane.take(), lane.runs.wanted) == ([], None)
    lane.runs.close({})
    assert lane.take() == [0]
    lane.settle(0)
    for row in rows:
        assert lane.runs.wanted == (row.number, row.position)
        lane.runs.unpark(row.number, lane.states[row.base], row.bits)
        assert drawn(lane) == [row.base]


def test_what_is_on_the_disk_is_seen_to_wait_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queues, "KEYED_RUNS_IN_MEMORY_MAX", 1)
    lane = StrictLane("a")
    assert lane.take() == [0]
    lane.runs.close(closed(a=1))
    lane.push("a")
    assert lane.take() == []
    spilled = [lane.runs.take_spill(n * KEYED_STUCK_MS) for n in range(3)]
    (row,) = [row for spill in spilled if spill is not None for row in spill.rows]
    lane.runs.spilled()
    lane.settle(0)
    assert lane.runs.wanted == (row.number, row.position)
    lane.runs.unpark(row.number, lane.states[1], row.bits)
    assert lane.take() == []
    lane.runs.close({})
    assert lane.take() == [1]


def test_what_is_ready_when_its_slot_is_closed_waits_in_its_order() -> None:
    lane = StrictLane("abab")
    lane.push("ab")
    assert lane.take(1) == [0]
    lane.runs.close(closed(b=0))
    lane.settle(0)
    assert drawn(lane) == [2, 4]
    lane.runs.close({})
    assert drawn(lane) == [1, 3, 5]


def test_of_what_is_ready_only_that_from_the_offset_on_waits() -> None:
    lane = StrictLane("ab")
    lane.push("cd")
    assert lane.runs  # both chunks are looked at
    lane.runs.close(closed(a=2, c=2, b=0))
    assert drawn(lane) == [0, 3]
    lane.runs.close({})
    assert sorted(drawn(lane)) == [1, 2]


@pytest.mark.parametrize("is_closed_first", [True, False])
def test_what_comes_back_waits_before_the_others_of_its_key(is_closed_first: bool) -> None:
    lane = StrictLane("aab")
    assert lane.take(1) == [0]
    lane.push("a")
    if is_closed_first:
        lane.runs.close(closed(a=0))
        lane.give_back(0)
    else:
        lane.give_back(0)
        lane.runs.close(closed(a=0))
    assert drawn(lane) == [2]
    lane.runs.close({})
    assert drawn(lane) == [0, 1, 3]


def test_a_key_that_has_nothing_else_waits_when_it_comes_back() -> None:
    lane = StrictLane("a")
    assert lane.take() == [0]
    lane.runs.close(closed(a=0))
    lane.give_back(0)
    assert drawn(lane) == []
    lane.push("a")
    assert drawn(lane) == []
    lane.runs.close({})
    assert drawn(lane) == [0, 1]


def test_several_that_come_back_wait_in_their_order() -> None:
    lane = StrictLane("aaa")
    assert lane.take(2) == [0, 1]
    lane.runs.close(closed(a=0))
    lane.give_back(0, 1)
    assert drawn(lane) == []
    lane.runs.close({})
    assert drawn(lane) == [0, 1, 2]
