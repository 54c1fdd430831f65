"""Messages that wait on the disk: what goes there, what comes back, and that a line keeps its order over both."""

from __future__ import annotations

import pytest

from backend_store.core.leases.leases import ChunkState
from backend_store.core.limits import KEYED_STUCK_MS
from backend_store.core.ready import key_queues
from backend_store.core.ready.key_queues import ParkedRow, Spill
from backend_store.core.ready.strict import StrictRuns
from tests.support.chunks import chunk_state, numbers


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queues, "KEYED_RUNS_IN_MEMORY_MAX", 3)
    monkeypatch.setattr(key_queues, "KEYED_SPILL_ROWS_MAX", 4)


class Lane:
    """Runs over chunks of one message each, and the rows that a shell keeps for them."""

    def __init__(self, keys: str):
        self.runs = StrictRuns(32)
        self.states: list[ChunkState] = []
        self.rows: dict[tuple[int, int], ParkedRow] = {}
        self.now_ms = 0
        self.push(keys)

    def push(self, keys: str) -> None:
        for key in keys:
            state = chunk_state(len(self.states), [key])
            self.states.append(state)
            self.runs.push(state, state.full)

    def take_all(self) -> list[int]:
        """Offsets of all that may be drawn, with what has to be brought back for it."""
        taken = []
        while True:
            wanted = self.runs.wanted
            if wanted is not None:
                row = self.rows[wanted]
                self.runs.unpark(row.number, self.states[row.base], row.bits)
                continue
            drawn = self.runs.draw(64)
            if drawn is None:
                return taken
            drawn[0].leased |= drawn[1]
            taken += numbers(drawn)

    def settle(self, *offsets: int) -> None:
        for offset in offsets:
            state = self.states[offset]
            state.leased, state.settled = 0, 1
            self.runs.freed(state, 1)

    def spill(self, later_ms: int = KEYED_STUCK_MS) -> list[int]:
        """Offsets of what a commit parks."""
        self.now_ms += later_ms
        spill = self.runs.take_spill(self.now_ms)
        if spill is None:
            return []
        self.land(spill)
        return [row.base for row in spill.rows]

    def land(self, spill: Spill) -> None:
        self.rows |= {(row.number, row.position): row for row in spill.rows}
        for place in spill.done:
            del self.rows[place]
        self.runs.spilled()


def test_nothing_is_parked_while_memory_has_room() -> None:
    lane = Lane("aaa")
    assert lane.take_all() == [0]
    assert not lane.runs.wants_spill
    assert (lane.spill(), lane.spill()) == ([], [])


def test_what_waits_behind_a_stuck_key_is_parked_but_for_its_next_message() -> None:
    lane = Lane("aaaa")
    assert lane.take_all() == [0]
    assert lane.runs.wants_spill
    assert lane.spill() == []  # whether it is stuck shows only later
    assert lane.spill(KEYED_STUCK_MS - 1) == []
    assert lane.spill(1) == [2, 3]
    assert not lane.runs.wants_spill and lane.runs.wants_more


def test_a_line_that_moves_is_not_parked() -> None:
    lane = Lane("aaaaa")
    assert lane.take_all() == [0]
    assert lane.spill() == []
    lane.settle(0)
    assert lane.take_all() == [1]
    assert lane.spill() == []
    assert lane.spill() == [3, 4]


def test_single_messages_of_stuck_keys_are_parked_where_there_is_nothing_else() -> None:
    lane = Lane("abcabc")
    assert lane.take_all() == [0, 1, 2]
    lane.spill()
    assert sorted(lane.spill()) == [3, 4, 5]
    lane.settle(1)
    assert lane.runs and lane.take_all() == [4]


def test_a_commit_parks_a_bounded_number_of_rows() -> None:
    lane = Lane("a" * 12)
    lane.take_all()
    lane.spill()
    assert lane.spill() == [2, 3, 4, 5]
    assert lane.spill(0) == [6, 7, 8, 9]


def test_order_holds_over_memory_and_disk() -> None:
    lane = Lane("a" * 8)
    order = lane.take_all()
    lane.spill()
    assert lane.spill() == [2, 3, 4, 5]
    lane.push("aa")
    while len(order) < 10:
        lane.settle(order[-1])
        order += lane.take_all()
        lane.spill(0)
    assert order == list(range(10))


def test_rows_that_were_brought_back_are_deleted_with_a_later_commit() -> None:
    lane = Lane("aaaaa")
    lane.take_all()
    lane.spill()
    assert (lane.spill(), len(lane.rows)) == ([2, 3, 4], 3)
    lane.settle(0)
    assert lane.take_all() == [1]
    lane.settle(1)
    assert lane.take_all() == [2]
    assert (lane.spill(0), len(lane.rows)) == ([], 2)


def test_what_is_on_its_way_to_the_disk_comes_back_only_from_there() -> None:
    lane = Lane("abcabc")
    lane.take_all()
    lane.spill()
    lane.now_ms += KEYED_STUCK_MS
    spill = lane.runs.take_spill(lane.now_ms)
    assert spill is not None and len(spill.rows) == 3
    assert lane.runs.take_spill(lane.now_ms) is None
    lane.settle(0)
    assert lane.take_all() == []
    lane.land(spill)
    assert lane.take_all() == [3]


def test_a_returned_message_goes_before_the_parked_ones_of_its_key() -> None:
    lane = Lane("abcabc")
    lane.take_all()
    lane.spill()
    lane.spill()
    state = lane.states[0]
    state.leased = 0
    lane.runs.freed(state, 1)
    lane.runs.put_back(state, 1)
    assert numbers(lane.runs.draw(1)) == [0]
    assert lane.runs.wanted is None
    lane.settle(0)
    assert lane.take_all() == [3]


def test_a_parked_message_whose_chunk_is_gone_is_passed_over() -> None:
    lane = Lane("abcabc")
    lane.take_all()
    lane.spill()
    lane.spill()
    lane.push("a")
    lane.settle(0)
    assert lane.runs.wanted is not None
    lane.runs.unpark(lane.runs.wanted[0], None, 0b1)
    assert lane.take_all() == [6]


def test_chunks_of_parked_messages_may_be_forgotten_and_come_back_as_new_ones() -> None:
    lane = Lane("aaaaa")
    lane.take_all()
    lane.spill()
    lane.spill()
    assert [state.base for state in lane.runs.take_idle()] == [2, 3, 4]
    assert lane.runs.take_idle() == []
    lane.states[2] = chunk_state(2, ["a"])
    lane.settle(0)
    assert lane.take_all() == [1]
    lane.settle(1)
    assert lane.take_all() == [2]


def test_a_chunk_that_was_pushed_again_is_not_idle() -> None:
    lane = Lane("aaaaa")
    lane.take_all()
    lane.spill()
    lane.spill()
    lane.runs.push(lane.states[3], 1)
    assert [state.base for state in lane.runs.take_idle()] == [2, 4]


def test_it_reads_no_further_ahead_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queues, "KEYED_LOOK_AHEAD_RUNS_MAX", 4)
    lane = Lane("aaaaa")
    lane.take_all()
    lane.spill()
    lane.spill()
    assert not lane.runs.wants_more and not lane.runs.wants_spill


def test_rows_of_before_a_purge_mean_nothing_after_it() -> None:
    lane = Lane("aaaa")
    lane.take_all()
    lane.spill()
    lane.now_ms += KEYED_STUCK_MS
    old = lane.runs.take_spill(lane.now_ms)
    assert old is not None
    lane.runs.clear()
    lane.runs.spilled()
    assert not lane.runs and lane.runs.wanted is None
    lane.push("bbbb")
    assert lane.take_all() == [4]
    lane.spill()
    lane.now_ms += KEYED_STUCK_MS
    new = lane.runs.take_spill(lane.now_ms)
    assert new is not None
    assert not {row.number for row in new.rows} & {row.number for row in old.rows}
