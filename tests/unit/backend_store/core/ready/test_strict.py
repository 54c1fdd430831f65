"""Strict order by key: one rule a test. Any order of events is in tests/model."""

from __future__ import annotations

import pytest

from backend_store.core.limits import (
    KEYED_CROWD_MIN,
    KEYED_LOADED_FIRST_MAX,
    KEYED_PATIENCE_MS,
    READY_RUNS_AHEAD,
)
from backend_store.core.partitions.slots import slot_of
from backend_store.core.ready import key_queues
from backend_store.core.ready.strict import StrictRuns
from tests.support.chunks import StrictLane, any_chunk, chunk_state, numbers


@pytest.fixture(params=[False, True], ids=["few keys in a chunk", "columns"])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of keeping a chunk's keys."""
    if request.param:
        monkeypatch.setattr("backend_store.core.ready.key_index.FEW_KEYS_MAX", 0)


pytestmark = pytest.mark.usefixtures("columns")

# ---------------------------------------------------------------------------------------------------- one rule a test


def test_keys_go_side_by_side_in_one_draw() -> None:
    lane = StrictLane("abcd")
    assert lane.take() == [0, 1, 2, 3]


def test_the_next_message_of_a_key_waits_until_the_one_before_is_settled() -> None:
    lane = StrictLane("ab", "ac")
    assert (lane.take(), lane.take(), lane.take()) == ([0, 1], [3], [])
    lane.settle(1, 3)
    assert lane.take() == []
    lane.settle(0)
    assert lane.take() == [2]


def test_a_consumer_gets_several_messages_of_a_key_in_order_and_nobody_gets_the_next_meanwhile() -> None:
    lane = StrictLane("aaaaa", key_run_max=3)
    assert (lane.take(), lane.take()) == ([0, 1, 2], [])
    lane.settle(0, 2)
    assert lane.take() == []
    lane.settle(1)
    assert lane.take() == [3, 4]


def test_a_draw_is_filled_with_other_keys_when_one_has_its_most() -> None:
    lane = StrictLane("aaaabbbb", key_run_max=2)
    assert lane.take(5) == [0, 1, 4, 5]


def test_a_draw_that_cuts_a_key_leaves_the_rest_for_after_it() -> None:
    lane = StrictLane("aab")
    assert (lane.take(1), lane.take()) == ([0], [2])
    lane.settle(0)
    assert lane.take() == [1]


def test_messages_without_a_key_share_one_order() -> None:
    lane = StrictLane("-a-", "-", key_run_max=1)
    assert (lane.take(), lane.take()) == ([0, 1], [])
    lane.settle(0)
    assert (lane.take(), lane.take()) == ([2], [])
    lane.settle(2)
    assert lane.take() == [3]


def test_chunks_without_keys_are_one_order() -> None:
    lane = StrictLane("---", "--")
    for state in lane.states:
        state.keys = None
    assert (lane.take(2), lane.take()) == ([0, 1], [])
    lane.settle(0, 1)
    assert lane.take() == [2]
    lane.settle(2)
    assert lane.take() == [3, 4]


def test_a_hot_key_does_not_block_others_that_come_after_it() -> None:
    lane = StrictLane(*["hhhh"] * 50, "hb")
    assert (lane.take(), lane.take(), lane.take()) == ([0, 1, 2, 3], [201], [])


def test_a_message_behind_waiting_ones_of_its_key_stays_behind_them() -> None:
    lane = StrictLane("a", "a", "b")
    assert (lane.take(), lane.take()) == ([0], [2])
    lane.settle(0)
    lane.push("ac")
    assert (lane.take(), lane.take(), lane.take()) == ([1], [4], [])
    lane.settle(1)
    assert lane.take() == [3]


def test_returned_messages_go_first_and_in_order() -> None:
    lane = StrictLane("aaab", "a")
    assert lane.take() == [0, 1, 2, 3]
    lane.settle(0)
    lane.give_back(1, 2)
    assert (lane.take(), lane.take()) == ([1, 2], [])
    lane.settle(1, 2)
    assert lane.take() == [4]


def test_a_returned_message_waits_for_the_others_of_its_key_that_are_held() -> None:
    lane = StrictLane("aab", "a")
    assert lane.take() == [0, 1, 2]
    lane.give_back(0)
    assert lane.take() == []
    lane.settle(1)
    assert lane.take() == [0]
    lane.settle(0)
    assert lane.take() == [3]


def sorted_lane(*turns: int) -> StrictLane:
    """A chunk of a queue that sorts: its messages have their turns in another order than they lie in."""
    lane = StrictLane()
    state = chunk_state(0, "a" * max(turns).bit_length())
    state.turns = [*turns]
    lane.states.append(state)
    for turn in turns:
        lane.runs.push(state, turn)
    return lane


def test_a_message_that_comes_back_goes_before_a_later_one_that_lies_before_it() -> None:
    lane = sorted_lane(0b100, 0b010, 0b001)
    assert lane.take() == [2]
    lane.give_back(2)
    assert (lane.take(), lane.take()) == ([2], [])
    lane.settle(2)
    assert lane.take() == [1]
    lane.give_back(1)
    assert lane.take() == [1]
    lane.settle(1)
    assert lane.take() == [0]


def test_messages_that_come_back_by_and_by_are_in_the_order_of_their_turns() -> None:
    lane = sorted_lane(0b110, 0b001)
    assert lane.take() == [1, 2]
    lane.give_back(1)
    assert lane.take() == []
    lane.give_back(2)
    assert (lane.take(), lane.take()) == ([1, 2], [])
    lane.settle(1, 2)
    assert lane.take() == [0]


def test_messages_returned_one_by_one_keep_their_order() -> None:
    lane = StrictLane("aaa", "ab", key_run_max=2)
    assert (lane.take(), lane.take()) == ([0, 1], [4])
    lane.give_back(1)
    lane.give_back(0)
    assert lane.take() == [0, 1]
    lane.settle(0, 1)
    assert lane.take() == [2]


def test_a_key_stays_locked_while_a_message_of_it_waits_for_its_retry() -> None:
    lane = StrictLane("ab", "ab")
    assert lane.take() == [0, 1]
    state = lane.states[0]
    state.leased, state.delayed = 0b10, 0b01
    assert lane.take() == []
    lane.settle(1)
    assert lane.take() == [3]
    state.delayed = 0
    lane.runs.freed(state, 0b01)
    lane.runs.put_back(state, 0b01)
    assert lane.take() == [0]


def test_what_was_settled_before_it_was_drawn_is_passed_over_and_its_key_goes_on() -> None:
    lane = StrictLane("ab", "ab", "a")
    lane.states[0].settled = 0b01
    assert lane.take() == [1]
    lane.states[1].settled = 0b01
    lane.runs.freed(lane.states[1], 0b01)
    assert (lane.take(), lane.take()) == ([4], [])
    lane.settle(1)
    assert lane.take() == [3]


def test_a_key_whose_ready_messages_were_all_settled_elsewhere_goes_on() -> None:
    lane = StrictLane("abc", "a")
    assert lane.take(1) == [0]
    lane.settle(0)
    lane.states[0].settled |= 0b110
    assert (lane.take(), lane.take()) == ([3], [])


def test_freeing_what_nobody_holds_changes_nothing() -> None:
    lane = StrictLane("ab", "a")
    assert lane.take(1) == [0]
    lane.runs.freed(lane.states[0], 0b10)
    lane.runs.freed(chunk_state(900, ["x"]), 0b1)
    assert (lane.take(), lane.take()) == ([1], [])


def test_putting_back_what_is_still_held_is_a_fault() -> None:
    lane = StrictLane("a")
    assert lane.take() == [0]
    with pytest.raises(AssertionError, match="before they were freed"):
        lane.runs.put_back(lane.states[0], 1)


def test_held_messages_of_before_a_restart_lock_their_keys() -> None:
    lane = StrictLane()
    state = chunk_state(0, ["a", "b", "a"])
    state.leased = 0b001
    lane.states.append(state)
    lane.runs.hold(state, 0b001)
    lane.runs.push(state, state.free)
    lane.push("ac")
    assert (lane.take(), lane.take(), lane.take()) == ([1], [4], [])
    lane.settle(0)
    assert lane.take() == [2]
    lane.settle(2)
    assert lane.take() == [3]


def test_a_key_that_two_chunks_hold_is_free_when_both_are() -> None:
    lane = StrictLane()
    first, second = chunk_state(0, ["a"]), chunk_state(1, ["a"])
    lane.states += [first, second]
    for state in (first, second, second):
        state.leased = 1
        lane.runs.hold(state, 1)
    lane.push("a")
    assert lane.take() == []
    lane.settle(0)
    assert lane.take() == []
    lane.settle(1)
    assert lane.take() == [2]


def test_holding_a_message_withdraws_what_was_ready_of_its_key() -> None:
    lane = StrictLane("ab", "a")
    assert lane.take(1) == [0]
    lane.settle(0)
    assert lane.runs  # the second chunk has not been looked at, the first has b ready
    held = chunk_state(50, ["b"])
    lane.states.append(held)
    held.leased = 1
    lane.runs.hold(held, 1)
    assert (lane.take(), lane.take()) == ([2], [])
    lane.settle(50)
    assert lane.take() == [1]


def test_a_message_that_comes_back_early_after_a_restart_goes_behind_earlier_ones_of_its_key() -> None:
    lane = StrictLane()
    earlier, held = lane.push("a"), lane.push("a")
    held.leased = 1
    lane.runs.hold(held, 1)
    lane.give_back(1)
    assert (lane.take(), lane.take()) == ([0], [])
    lane.settle(0)
    assert earlier.settled and lane.take() == [1]


def test_a_chunk_that_gave_up_its_column_still_unlocks_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.core.ready.key_index.KEYED_COLUMNS_MAX", 1)
    lane = StrictLane("abc")
    assert lane.take() == [0, 1, 2]
    lane.states[0].settling = 0b011
    lane.push("abc")
    assert not lane.runs  # looking at the second chunk makes the first one small
    lane.states[0].settling = 0
    lane.settle(0, 1)
    assert lane.take() == [3, 4]


def test_it_reads_on_only_while_nothing_may_be_drawn() -> None:
    lane = StrictLane()
    assert lane.runs.wants_more
    lane.push("ab")
    assert lane.runs and not lane.runs.wants_more
    assert lane.take() == [0, 1]
    assert not lane.runs and lane.runs.wants_more
    lane.push("ab")
    assert not lane.runs and lane.runs.wants_more


def test_it_reads_no_further_when_memory_is_full_and_new_chunks_stay_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queues, "KEYED_RUNS_IN_MEMORY_MAX", READY_RUNS_AHEAD)
    lane = StrictLane("a", *"a" * READY_RUNS_AHEAD)
    assert lane.take() == [0]
    assert not lane.runs and not lane.runs.wants_more
    assert len(lane.runs) >= READY_RUNS_AHEAD
    lane.settle(0)
    assert lane.runs and len(lane.runs) == 0


def test_it_counts_chunks_that_wait_as_well_as_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queues, "KEYED_CHUNKS_IN_MEMORY_MAX", 2)
    lane = StrictLane("ab", "ab", "a")
    assert (lane.take(), lane.take()) == ([0, 1], [])
    assert not lane.runs.wants_more
    lane.settle(0)
    assert lane.take() == [2]
    assert not lane.runs.wants_more
    lane.settle(1)
    assert lane.take() == [3]
    assert lane.runs.wants_more


def test_a_chunk_that_left_memory_is_asked_for_before_it_is_drawn_from() -> None:
    lane = StrictLane("a", "a")
    assert lane.take() == [0]
    assert not lane.runs
    lane.states[1].chunk = None
    assert lane.runs.missing() is None
    lane.settle(0)
    assert lane.runs.missing() == lane.states[1].base
    lane.states[1].chunk = any_chunk(1, 1)
    assert lane.take() == [1]


def test_a_chunk_that_was_lost_is_not_asked_for() -> None:
    lane = StrictLane("a", "a", "a")
    assert (lane.take(), lane.take()) == ([0], [])
    lane.states[1].chunk = None
    lane.states[1].settled = 1
    lane.settle(0)
    assert lane.runs.missing() is None
    assert lane.take() == [2]


def test_loaded_chunks_go_before_one_that_has_to_be_read_but_not_for_ever() -> None:
    lane = StrictLane("x", "x", *[f"{n}" for n in range(9)] * 3)
    assert lane.take() == [0]
    for _ in range(9):
        assert len(lane.take()) == 1
    lane.states[1].chunk = None
    assert not lane.runs
    lane.settle(0)
    lane.settle(*range(2, 11))
    waited = 0
    while lane.runs.missing() is None:
        lane.settle(*lane.take(1))
        waited += 1
    assert 0 < waited <= KEYED_LOADED_FIRST_MAX
    assert lane.runs.missing() == 1
    lane.states[1].chunk = any_chunk(1, 1)
    assert lane.take() == [1]


def test_a_purge_forgets_everything() -> None:
    lane = StrictLane("ab", "ab")
    assert lane.take(1) == [0]
    lane.runs.clear()
    assert not lane.runs and len(lane.runs) == 0
    lane.states.clear()
    lane.push("ab")
    assert lane.take() == [0, 1]


# ------------------------------------------------------------------------------------------------------- patience


def test_it_is_in_no_hurry_to_read_on_while_many_keys_wait_and_move() -> None:
    lane = StrictLane(*["abcdef"] * 2, is_patient=True)
    assert (lane.take(), lane.take()) == ([0, 1, 2, 3, 4, 5], [])
    assert not lane.runs.wants_more
    assert lane.runs.reads_on_ms(1_000) == 1_000 + KEYED_PATIENCE_MS
    assert lane.runs.reads_on_ms(1_015) == 1_000 + KEYED_PATIENCE_MS
    lane.settle(0)
    assert lane.take() == [6]
    assert lane.runs.reads_on_ms(1_019) == 1_019 + KEYED_PATIENCE_MS


def test_it_reads_on_after_a_moment_in_which_nothing_was_settled() -> None:
    lane = StrictLane(*["abcdef"] * 2, is_patient=True)
    lane.take()
    assert lane.runs.reads_on_ms(0) == KEYED_PATIENCE_MS
    assert lane.runs.reads_on_ms(KEYED_PATIENCE_MS) is None
    assert lane.runs.wants_more
    lane.push("abcdef")
    assert lane.runs.wants_more  # until twice as many keys wait
    lane.push("ghijklmnop")
    assert len(lane.take()) == 10
    lane.push("ghijklmnop")
    assert not lane.runs.wants_more


def test_a_few_stuck_keys_do_not_make_it_wait() -> None:
    stuck = "abcdefgh"[: KEYED_CROWD_MIN - 1]
    lane = StrictLane(stuck, stuck, stuck, is_patient=True)
    lane.take()
    assert lane.runs.wants_more and lane.runs.reads_on_ms(0) is None


def test_who_does_not_keep_time_is_never_made_to_wait() -> None:
    lane = StrictLane(*["abcdef"] * 2)
    lane.take()
    assert lane.runs.wants_more


# ------------------------------------------------------------------------------------------------ other partitions


def test_messages_of_a_closed_slot_wait_from_the_offset_on_that_it_was_closed_at() -> None:
    lane = StrictLane("ab", "ab")
    lane.runs.close({slot_of("a"): 2})
    assert (lane.take(), lane.take()) == ([0, 1], [])
    lane.settle(0, 1)
    assert (lane.take(), lane.take()) == ([3], [])
    lane.runs.close({})
    assert lane.take() == [2]


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_an_older_message_that_is_read_later_goes_before_those_that_wait_for_it(is_looked_at: bool) -> None:
    """After a start the log is read before the schedule, and what is due in it may be older."""
    early, also, late = (chunk_state(base, ["a", "b"]) for base in (0, 2, 4))
    runs = StrictRuns(32)
    runs.close({slot_of("a"): 4})
    runs.push(late, late.full)
    if is_looked_at:
        assert numbers(runs.draw(64)) == [5]
    runs.push(early, early.full)
    runs.push(also, also.full)
    got = [number for _ in range(6) for number in _drawn_and_settled(runs)]
    assert [number for number in got if number % 2 == 0] == [0, 2]
    runs.close({})
    assert _drawn_and_settled(runs) == [4]


def _drawn_and_settled(runs: StrictRuns) -> list[int]:
    drawn = runs.draw(64)
    if drawn is None:
        return []
    state, bits = drawn
    state.settled |= bits
    runs.freed(state, bits)
    return numbers(drawn)
