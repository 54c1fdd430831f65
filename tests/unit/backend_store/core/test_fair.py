"""Fair share by key: who goes first, how soon a quiet tenant is served beside a flood, and that nothing is lost by it."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backend_store.core import bykey, fair
from backend_store.core.bykey import Key
from backend_store.core.fair import FairRuns, Shares
from backend_store.core.leases import ChunkState
from backend_store.core.limits import (
    FAIR_AHEAD_CHUNKS_MAX,
    FAIR_ASIDE_RUNS_MAX,
    FAIR_MEMORY_MESSAGES,
    NOISY_MESSAGES_MIN,
)
from backend_store.core.runs import ArrivalRuns, Runs
from tests.support.chunks import any_chunk, chunk_state, numbers

MANY = NOISY_MESSAGES_MIN


class Lane:
    """Runs and the chunks that lie before and behind them, each given as the list of its messages' keys."""

    def __init__(self, runs: Runs, chunks: Sequence[Sequence[Key]] = ()):
        self.runs = runs
        self.states: list[ChunkState] = []
        self.bases: list[int] = []
        self.keys: list[Key] = []
        self.read = 0
        for keys in chunks:
            self.store(keys)

    def store(self, keys: Sequence[Key]) -> None:
        self.states.append(chunk_state(len(self.keys), keys))
        self.bases.append(len(self.keys))
        self.keys += keys

    def take(self, limit: int = 64) -> list[int]:
        """Offsets of what a consumer gets, with as many chunks read as the runs ask for."""
        while True:
            if self.read < len(self.states) and self.runs.wants_more:
                state = self.states[self.read]
                self.read += 1
                self.runs.push(state, state.free)
                continue
            if (missing := self.runs.missing()) is not None:
                state = self._of(missing)
                state.chunk = any_chunk(state.base, state.count)
            drawn = self.runs.draw(limit)
            if drawn is not None:
                assert drawn[1] and not drawn[1] & ~drawn[0].free
                drawn[0].leased |= drawn[1]
            if drawn is not None or self.read == len(self.states):
                return numbers(drawn)

    def _of(self, offset: int) -> ChunkState:
        return self.states[bisect_right(self.bases, offset) - 1]

    def settle(self, offsets: Sequence[int]) -> None:
        by_state: dict[int, int] = {}
        for offset in offsets:
            base = self._of(offset).base
            by_state[base] = by_state.get(base, 0) | 1 << (offset - base)
        for base, bits in by_state.items():
            state = self._of(base)
            state.leased &= ~bits
            state.settled |= bits
            self.runs.freed(state, bits)

    def give_back(self, offset: int) -> None:
        state = self._of(offset)
        bit = 1 << (offset - state.base)
        state.leased &= ~bit
        self.runs.freed(state, bit)
        self.runs.put_back(state, bit)

    def keys_of(self, offsets: Sequence[int]) -> list[Key]:
        return [self.keys[offset] for offset in offsets]


# ---------------------------------------------------------------------------------------------------- one rule a test


def test_messages_go_as_they_came_while_nobody_is_noisy() -> None:
    lane = Lane(FairRuns(), [["a", "b", None], ["b", "a"]])
    assert (lane.take(2), lane.take(), lane.take(), lane.take()) == ([0, 1], [2], [3, 4], [])


def test_a_quiet_key_goes_before_a_noisy_one_that_came_earlier() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, ["a"] * 10, ["a", "b"]])
    assert lane.take() == list(range(MANY))
    assert lane.take() == [MANY + 11]


def test_the_noisy_one_gets_what_nobody_else_wants() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, ["a", "b"], ["a", "b"]])
    lane.take()
    got = [lane.take() for _ in range(5)]
    assert got == [[MANY + 1], [MANY + 3], [MANY], [MANY + 2], []]


def test_a_noisy_key_alone_in_the_queue_is_served_in_order() -> None:
    lane = Lane(FairRuns(), [["a"] * 100] * 30)
    got = [offset for _ in range(60) for offset in lane.take(50)]
    assert got == list(range(3000))


def test_a_key_with_few_messages_in_flight_is_never_noisy() -> None:
    lane = Lane(FairRuns(), [["a"] * (MANY - 1), ["a", "b"]])
    assert len(lane.take()) == MANY - 1
    assert lane.take() == [MANY - 1, MANY]


def test_equal_shares_make_nobody_noisy() -> None:
    keys = [f"k{n}" for n in range(10)] * 20
    lane = Lane(FairRuns(), [keys, ["k0", "new"]])
    for _ in range(4):
        lane.take(50)
    assert lane.keys_of(lane.take()) == ["k0", "new"]


def test_a_key_is_quiet_again_when_its_share_has_fallen() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, ["a", "a"], ["b"] * MANY, ["b", "b"]])
    taken = lane.take()
    assert lane.keys_of(lane.take()) == ["b"] * MANY
    lane.settle(taken)
    for _ in range(FAIR_MEMORY_MESSAGES):  # others come and go
        lane.store(["c"])
        lane.settle(next(got for got in iter(lane.take, None) if lane.keys_of(got) != ["b", "b"]))
    assert MANY in [offset for state in lane.states for offset in numbers((state, state.settled))]


def test_a_noisy_key_keeps_a_share_beside_many_quiet_ones() -> None:
    """Quiet keys alone could fill all consumers for ever."""
    lane = Lane(FairRuns(), [["a"] * 200] * 5)
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
    lane = Lane(FairRuns(), [["a", "b", "a"], ["a"]])
    assert lane.take(2) == [0, 1]
    lane.give_back(1)
    assert (lane.take(), lane.take()) == ([1], [2])


def test_returned_messages_of_a_noisy_key_go_before_its_others() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, ["a"] * 3, ["a"] * 3])
    lane.take()
    assert lane.take(1) == [MANY]
    lane.give_back(0)
    assert lane.take() == [0]
    lane.give_back(MANY)
    assert [lane.take() for _ in range(3)] == [[MANY, MANY + 1, MANY + 2], [MANY + 3, MANY + 4, MANY + 5], []]


def test_messages_without_a_key_are_one_tenant() -> None:
    lane = Lane(FairRuns(), [[None] * MANY, [None] * 5, [None, "b"]])
    lane.states[0].keys = lane.states[1].keys = None
    lane.take()
    assert lane.keys_of(lane.take()) == ["b"]


def test_messages_settled_elsewhere_are_passed_over_wherever_they_wait() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, ["a"] * 3, ["a", "b"], ["b"]])
    lane.take()
    assert lane.take() == [MANY + 4]  # the noisy ones are set aside by now
    lane.states[1].settled = 0b111
    lane.states[3].settled = 0b1
    assert (lane.take(), lane.take()) == ([MANY + 3], [])


def test_a_chunk_that_left_memory_is_asked_for() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, ["a"], ["a"]])
    lane.take()
    lane.take()
    assert lane.runs.missing() is None
    lane.states[2].chunk = None
    assert lane.runs.missing() == MANY + 1
    lane.states[2].settled = 1
    assert lane.runs.missing() is None and lane.take() == []


def test_it_reads_a_bounded_number_of_chunks_ahead_of_each_draw() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, *[["a"] * 10] * 100])
    lane.take()
    for draws in range(1, 4):
        lane.take()
        assert lane.read <= 1 + draws * FAIR_AHEAD_CHUNKS_MAX


def test_it_sets_a_bounded_number_of_runs_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FAIR_ASIDE_RUNS_MAX < 100_000
    monkeypatch.setattr(fair, "FAIR_ASIDE_RUNS_MAX", 5)
    lane = Lane(FairRuns(), [["a"] * MANY, *[["a"] * 10] * 100])
    lane.take()
    assert len(lane.take()) == 10
    assert lane.read == 1 + 5 + 1  # the last one has only been read
    assert len(lane.take()) == 10
    assert lane.read == 1 + 6 + 1


def test_new_chunks_come_to_memory_whatever_is_set_aside() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, *[["a"] * 10] * 6])
    lane.take()
    lane.take()
    assert len(lane.runs) == 0


def test_what_a_plain_queue_had_ready_stays_in_its_order() -> None:
    plain = Lane(ArrivalRuns(), [[None] * 3, [None] * 2])
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
    lane = Lane(FairRuns())
    kept = chunk_state(1000, ["a"] * MANY)
    kept.leased = kept.full
    lane.runs.hold(kept, kept.full)
    lane.runs.hold(kept, kept.full)
    lane.store(["a", "b"])
    assert lane.keys_of(lane.take()) == ["b"]


def test_a_purge_forgets_everything() -> None:
    lane = Lane(FairRuns(), [["a"] * MANY, ["a"], ["a", "b"]])
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
    lane = Lane(make_runs(), [["A"] * 256] * 391)
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


# ------------------------------------------------------------------------------------------------------- any order

SMALL = {
    (fair, "NOISY_MESSAGES_MIN"): 3,
    (fair, "FAIR_MEMORY_MESSAGES"): 4,
    (fair, "RECOUNT_MESSAGES_MIN"): 2,
    (fair, "FAIR_AHEAD_CHUNKS_MAX"): 2,
    (fair, "FAIR_ASIDE_RUNS_MAX"): 6,
    (bykey, "KEYED_COLUMNS_MAX"): 1,
    (bykey, "FEW_KEYS_MAX"): 2,
}
any_number = st.integers(0, 1 << 20)


class FairShare(RuleBasedStateMachine):
    """Nothing is lost, nothing comes twice, and nobody gets nothing while something is free."""

    def __init__(self) -> None:
        super().__init__()
        self._bounds = {place: getattr(*place) for place in SMALL}
        for place, value in SMALL.items():
            setattr(*place, value)
        self.lane = Lane(FairRuns())
        self.free: set[int] = set()
        self.held: set[int] = set()

    def teardown(self) -> None:
        try:
            for _ in range(len(self.lane.keys)):
                self.draw(8)
                self.lane.settle(sorted(self.held))
                self.held.clear()
            runs = self.lane.runs
            assert isinstance(runs, FairRuns)
            assert not self.free and not runs and not runs._aside_of and not runs._aside_runs
            assert not any(state.base in runs._spots for state in self.lane.states)
        finally:
            for place, value in self._bounds.items():
                setattr(*place, value)

    @rule(
        keys=st.lists(st.sampled_from(["a", "a", "a", "b", "c", None]), min_size=1, max_size=10),
        times=st.integers(1, 4),
    )
    def publish(self, keys: list[Key], times: int) -> None:
        for _ in range(times):
            self.free |= set(range(len(self.lane.keys), len(self.lane.keys) + len(keys)))
            self.lane.store(keys)

    @rule(limit=st.integers(1, 8))
    def draw(self, limit: int) -> None:
        got = self.lane.take(limit)
        assert bool(got) == bool(self.free), f"{len(self.free)} are free, {len(got)} were handed out"
        assert len(got) <= limit and self.free >= set(got)
        self.free -= set(got)
        self.held |= set(got)

    @precondition(lambda self: self.held)
    @rule(picks=st.lists(any_number, min_size=1, max_size=6))
    def settle(self, picks: list[int]) -> None:
        chosen = {sorted(self.held)[pick % len(self.held)] for pick in picks}
        self.lane.settle(sorted(chosen))
        self.held -= chosen

    @precondition(lambda self: self.held)
    @rule(pick=any_number)
    def give_back(self, pick: int) -> None:
        offset = sorted(self.held)[pick % len(self.held)]
        self.lane.give_back(offset)
        self.held.remove(offset)
        self.free.add(offset)

    @precondition(lambda self: self.free)
    @rule(pick=any_number)
    def expire(self, pick: int) -> None:
        offset = sorted(self.free)[pick % len(self.free)]
        self.lane.settle([offset])
        self.free.remove(offset)

    @rule(pick=any_number)
    def leave_memory(self, pick: int) -> None:
        if self.lane.states:
            self.lane.states[pick % len(self.lane.states)].chunk = None

    @invariant()
    def counts_are_what_is_held_and_was_settled_last(self) -> None:
        runs = self.lane.runs
        assert isinstance(runs, FairRuns)
        shares = runs._shares
        assert sum(shares._load.values()) == shares._total
        assert shares._total - shares._settled_count == len(self.held)

    @invariant()
    def runs_set_aside_are_counted(self) -> None:
        runs = self.lane.runs
        assert isinstance(runs, FairRuns)
        assert runs._aside_runs == sum(map(len, runs._aside_of.values()))


TestFairShare = FairShare.TestCase
TestFairShare.settings = settings(
    max_examples=settings().max_examples if settings.get_current_profile_name() == "long" else 200,
    stateful_step_count=50,
    report_multiple_bugs=False,
)
