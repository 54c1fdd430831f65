"""Fair share by key: who goes first, how soon a quiet tenant is served beside a flood, and that nothing is lost."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from backend_store.core.limits import (
    FAIR_AHEAD_CHUNKS_MAX,
    FAIR_ASIDE_RUNS_MAX,
    FAIR_MEMORY_MESSAGES,
    NOISY_MESSAGES_MIN,
)
from backend_store.core.ready import fair
from backend_store.core.ready.arrival import ArrivalRuns, Runs
from backend_store.core.ready.fair import FairRuns, Shares
from backend_store.core.ready.key_index import Key
from tests.support.chunks import ScannedLane, chunk_state, numbers

MANY = NOISY_MESSAGES_MIN

# ---------------------------------------------------------------------------------------------------- one rule a test


def test_messages_go_as_they_came_while_nobody_is_noisy() -> None:
    lane = ScannedLane(FairRuns(), [["a", "b", None], ["b", "a"]])
    assert (lane.take(2), lane.take(), lane.take(), lane.take()) == ([0, 1], [2], [3, 4], [])


def test_a_quiet_key_goes_before_a_noisy_one_that_came_earlier() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, ["a"] * 10, ["a", "b"]])
    assert lane.take() == list(range(MANY))
    assert lane.take() == [MANY + 11]


def test_the_noisy_one_gets_what_nobody_else_wants() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, ["a", "b"], ["a", "b"]])
    lane.take()
    got = [lane.take() for _ in range(5)]
    assert got == [[MANY + 1], [MANY + 3], [MANY], [MANY + 2], []]


def test_a_noisy_key_alone_in_the_queue_is_served_in_order() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * 100] * 30)
    got = [offset for _ in range(60) for offset in lane.take(50)]
    assert got == list(range(3000))


def test_a_key_with_few_messages_in_flight_is_never_noisy() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * (MANY - 1), ["a", "b"]])
    assert len(lane.take()) == MANY - 1
    assert lane.take() == [MANY - 1, MANY]


def test_equal_shares_make_nobody_noisy() -> None:
    keys = [f"k{n}" for n in range(10)] * 20
    lane = ScannedLane(FairRuns(), [keys, ["k0", "new"]])
    for _ in range(4):
        lane.take(50)
    assert lane.keys_of(lane.take()) == ["k0", "new"]


def test_a_key_is_quiet_again_when_its_share_has_fallen() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, ["a", "a"], ["b"] * MANY, ["b", "b"]])
    taken = lane.take()
    assert lane.keys_of(lane.take()) == ["b"] * MANY
    lane.settle(taken)
    for _ in range(FAIR_MEMORY_MESSAGES):  # others come and go
        lane.store(["c"])
        lane.settle(next(got for got in iter(lane.take, None) if lane.keys_of(got) != ["b", "b"]))
    assert MANY in [offset for state in lane.states for offset in numbers((state, state.settled))]


def test_a_noisy_key_keeps_a_share_beside_many_quiet_ones() -> None:
    """Quiet keys alone could fill all consumers for ever."""
    lane = ScannedLane(FairRuns(), [["a"] * 200] * 5)
    for number in range(400):
        lane.store([f"quiet-{number}-{n}" for n in range(20)])
    in_flight: list[list[int]] = []
    seen: list[Key] = []
    for _ in range(300):
        got = lane.take(10)
        seen += lane.keys_of(got)
        in_flight.append(got)
        if len(in_flight) > 20:
            lane.settle(in_flight.pop(0))
    assert seen[1000:].count("a") > 50


def test_returned_messages_go_first() -> None:
    lane = ScannedLane(FairRuns(), [["a", "b", "a"], ["a"]])
    assert lane.take(2) == [0, 1]
    lane.give_back(1)
    assert (lane.take(), lane.take()) == ([1], [2])


def test_returned_messages_of_a_noisy_key_go_before_its_others() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, ["a"] * 3, ["a"] * 3])
    lane.take()
    assert lane.take(1) == [MANY]
    lane.give_back(0)
    assert lane.take() == [0]
    lane.give_back(MANY)
    assert [lane.take() for _ in range(3)] == [[MANY, MANY + 1, MANY + 2], [MANY + 3, MANY + 4, MANY + 5], []]


def test_messages_without_a_key_are_one_tenant() -> None:
    lane = ScannedLane(FairRuns(), [[None] * MANY, [None] * 5, [None, "b"]])
    lane.states[0].keys = lane.states[1].keys = None
    lane.take()
    assert lane.keys_of(lane.take()) == ["b"]


def test_messages_settled_elsewhere_are_passed_over_wherever_they_wait() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, ["a"] * 3, ["a", "b"], ["b"]])
    lane.take()
    assert lane.take() == [MANY + 4]  # the noisy ones are set aside by now
    lane.states[1].settled = 0b111
    lane.states[3].settled = 0b1
    assert (lane.take(), lane.take()) == ([MANY + 3], [])


def test_a_chunk_that_left_memory_is_asked_for() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, ["a"], ["a"]])
    lane.take()
    lane.take()
    assert lane.runs.missing() is None
    lane.states[2].chunk = None
    assert lane.runs.missing() == MANY + 1
    lane.states[2].settled = 1
    assert lane.runs.missing() is None and lane.take() == []


def test_it_reads_a_bounded_number_of_chunks_ahead_of_each_draw() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, *[["a"] * 10] * 100])
    lane.take()
    for draws in range(1, 4):
        lane.take()
        assert lane.read <= 1 + draws * FAIR_AHEAD_CHUNKS_MAX


def test_it_sets_a_bounded_number_of_runs_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FAIR_ASIDE_RUNS_MAX < 100_000
    monkeypatch.setattr(fair, "FAIR_ASIDE_RUNS_MAX", 5)
    lane = ScannedLane(FairRuns(), [["a"] * MANY, *[["a"] * 10] * 100])
    lane.take()
    assert len(lane.take()) == 10
    assert lane.read == 1 + 5 + 1  # the last one has only been read
    lane.take()
    lane.take()
    assert lane.read <= 1 + 7 + 1


def test_new_chunks_come_to_memory_whatever_is_set_aside() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, *[["a"] * 10] * 6])
    lane.take()
    lane.take()
    assert len(lane.runs) == 0


def test_what_a_plain_queue_had_ready_stays_in_its_order() -> None:
    plain = ScannedLane(ArrivalRuns(), [[None] * 3, [None] * 2])
    for state in plain.states:
        state.keys = None
        plain.runs.push(state, state.full)
    plain.read = 2
    assert plain.take(2) == [0, 1]
    assert isinstance(plain.runs, ArrivalRuns)
    plain.runs = FairRuns.from_arrival(plain.runs)
    plain.settle([0, 1])
    assert (plain.take(), plain.take(), plain.take()) == ([2], [3, 4], [])


def test_held_messages_of_before_a_restart_count() -> None:
    lane = ScannedLane(FairRuns())
    kept = chunk_state(1000, ["a"] * MANY)
    kept.leased = kept.full
    lane.runs.hold(kept, kept.full)
    lane.runs.hold(kept, kept.full)
    lane.store(["a", "b"])
    assert lane.keys_of(lane.take()) == ["b"]


def test_a_purge_forgets_everything() -> None:
    lane = ScannedLane(FairRuns(), [["a"] * MANY, ["a"], ["a", "b"]])
    lane.take()
    lane.take()
    lane.runs.clear()
    assert not lane.runs and lane.runs.missing() is None and lane.take() == []


def test_settled_messages_count_until_enough_others_were_settled() -> None:
    shares = Shares()
    shares.add({"a": MANY}, MANY)
    shares.settle({"a": MANY}, MANY)
    assert shares.recount() and shares.noisy == {"a"}
    shares.add({"b": FAIR_MEMORY_MESSAGES}, FAIR_MEMORY_MESSAGES)
    shares.settle({"b": FAIR_MEMORY_MESSAGES}, FAIR_MEMORY_MESSAGES)
    assert shares.recount() and shares.noisy == {"b"}


# --------------------------------------------------------------------------------------------- how long a tenant waits

SERVICE_MS = 10


def waits_ms(make_runs: Callable[[], Runs], *, consumers: int, batch: int, late: bool) -> tuple[list[int], int]:
    """How long each of B's 100 messages waits behind A's 100,000, and when all are done.

    Consumers take up to `batch` messages and need `SERVICE_MS` for each. `late`: B comes when A's have been there a
    while; else right after them.
    """
    lane = ScannedLane(make_runs(), [["A"] * 256] * 391)
    if not late:
        lane.store(["B"] * 100)
    came_ms = 5_000 if late else 0
    working: list[tuple[int, int, list[int]]] = []
    waits: list[int] = []
    idle, now_ms, turn = consumers, 0, 0
    while True:
        if late and now_ms >= came_ms and "B" not in lane.keys[-1:]:
            lane.store(["B"] * 100)
        while idle and (got := lane.take(batch)):
            waits += [now_ms - came_ms for key in lane.keys_of(got) if key == "B"]
            turn += 1
            heapq.heappush(working, (now_ms + len(got) * SERVICE_MS, turn, got))
            idle -= 1
        if not working:
            return waits, now_ms
        now_ms, _, got = heapq.heappop(working)
        idle += 1
        lane.settle(got)


@pytest.mark.parametrize("late", [False, True], ids=["behind the flood", "later"])
@pytest.mark.parametrize(("consumers", "batch"), [(1, 10), (10, 4), (50, 64)])
def test_a_quiet_tenant_waits_little_behind_a_flood(consumers: int, batch: int, late: bool) -> None:
    waits, end_ms = waits_ms(FairRuns, consumers=consumers, batch=batch, late=late)
    plain_waits, plain_end_ms = waits_ms(ArrivalRuns, consumers=consumers, batch=batch, late=late)
    assert len(waits) == len(plain_waits) == 100
    assert sum(waits) * 20 < sum(plain_waits)
    assert max(waits) < max(plain_waits) / 10
    assert end_ms <= plain_end_ms + batch * SERVICE_MS, "consumers were idle"
