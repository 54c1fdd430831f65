"""Fair share in any order of events: nothing is lost, nothing comes twice, and no consumer idles for fairness."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backend_store.core.ready import fair, key_index
from backend_store.core.ready.fair import FairRuns
from backend_store.core.ready.key_index import Key
from tests.support.chunks import ScannedLane
from tests.support.seeds import examples

SMALL = {
    (fair, "NOISY_MESSAGES_MIN"): 3,
    (fair, "FAIR_MEMORY_MESSAGES"): 4,
    (fair, "RECOUNT_MESSAGES_MIN"): 2,
    (fair, "FAIR_AHEAD_CHUNKS_MAX"): 2,
    (fair, "FAIR_ASIDE_RUNS_MAX"): 6,
    (key_index, "KEYED_COLUMNS_MAX"): 1,
    (key_index, "FEW_KEYS_MAX"): 2,
}
any_number = st.integers(0, 1 << 20)


class FairShare(RuleBasedStateMachine):
    """Nothing is lost, nothing comes twice, and nobody gets nothing while something is free."""

    def __init__(self) -> None:
        super().__init__()
        self._bounds = {place: getattr(*place) for place in SMALL}
        for place, value in SMALL.items():
            setattr(*place, value)
        self.lane = ScannedLane(FairRuns())
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
    max_examples=examples(40, exploring=200),
    stateful_step_count=50,
    report_multiple_bugs=False,
)
