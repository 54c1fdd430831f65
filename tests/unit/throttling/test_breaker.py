"""The circuit breaker: when it opens, whom it lets probe, and how it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.seeds import examples
from throttling.breaker import Breaker, BreakerRule, Pass, Refused

FIRST_MS = 1_000_000


def called(breaker: Breaker, now_ms: int, *, fails: bool) -> None:
    leave = breaker.admit(now_ms)
    assert isinstance(leave, Pass)
    if fails:
        breaker.failed(leave, now_ms)
    else:
        breaker.succeeded(leave, now_ms)


def opened(now_ms: int = FIRST_MS) -> Breaker:
    breaker = Breaker()
    for _ in range(20):
        called(breaker, now_ms, fails=True)
    assert breaker.state == "open"
    return breaker


def probe(breaker: Breaker, now_ms: int) -> Pass:
    leave = breaker.admit(now_ms)
    assert isinstance(leave, Pass)
    assert breaker.state == "half_open"
    return leave


@pytest.mark.parametrize(
    ("good", "bad", "spread_ms", "state"),
    [
        (0, 19, 0, "closed"),  # too few to judge
        (0, 20, 0, "open"),
        (10, 10, 0, "open"),  # half of them is enough
        (11, 10, 0, "closed"),
        (200, 100, 0, "closed"),
        (0, 20, 4_000, "open"),  # all within the window
        (0, 20, 9_000, "closed"),  # never twenty within it
    ],
)
def test_it_opens_at_half_of_twenty_calls_within_five_seconds(good: int, bad: int, spread_ms: int, state: str) -> None:
    breaker = Breaker()
    for _ in range(good):
        called(breaker, FIRST_MS, fails=False)
    for number in range(bad):
        called(breaker, FIRST_MS + number * spread_ms // bad, fails=True)
    assert breaker.state == state


def test_failures_of_long_ago_do_not_count() -> None:
    breaker = Breaker()
    for _ in range(19):
        called(breaker, FIRST_MS, fails=True)
    called(breaker, FIRST_MS + 5_500, fails=True)
    assert breaker.state == "closed"


def test_an_open_circuit_says_when_to_come_back() -> None:
    breaker = opened()
    assert breaker.admit(FIRST_MS) == Refused(1_000)
    assert breaker.admit(FIRST_MS + 600) == Refused(400)


def test_one_call_probes_and_the_others_wait() -> None:
    breaker = opened()
    probe(breaker, FIRST_MS + 1_000)
    assert isinstance(breaker.admit(FIRST_MS + 1_000), Refused)


def test_a_probe_that_succeeds_closes_the_circuit() -> None:
    breaker = opened()
    breaker.succeeded(probe(breaker, FIRST_MS + 1_000), FIRST_MS + 1_001)
    assert breaker.state == "closed"
    called(breaker, FIRST_MS + 1_002, fails=True)
    assert breaker.state == "closed"  # what failed before it opened is forgotten


def test_each_probe_that_fails_doubles_the_pause_up_to_thirty_seconds() -> None:
    breaker, now_ms, pauses = opened(), FIRST_MS, []
    for _ in range(7):
        refused = breaker.admit(now_ms)
        assert isinstance(refused, Refused)
        pauses.append(refused.retry_after_ms)
        now_ms += refused.retry_after_ms
        breaker.failed(probe(breaker, now_ms), now_ms)
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]


def test_after_a_recovery_the_pause_is_short_again() -> None:
    breaker = opened()
    breaker.failed(probe(breaker, FIRST_MS + 1_000), FIRST_MS + 1_000)
    breaker.succeeded(probe(breaker, FIRST_MS + 3_000), FIRST_MS + 3_000)
    for _ in range(20):
        called(breaker, FIRST_MS + 4_000, fails=True)
    assert breaker.admit(FIRST_MS + 4_000) == Refused(1_000)


def test_a_probe_whose_caller_left_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.abandoned(probe(breaker, FIRST_MS + 1_000))
    assert breaker.state == "open"
    probe(breaker, FIRST_MS + 1_001)


def test_an_answer_asked_for_before_the_circuit_opened_does_not_close_it() -> None:
    breaker = Breaker()
    slow = breaker.admit(FIRST_MS)
    assert isinstance(slow, Pass)
    for _ in range(20):
        called(breaker, FIRST_MS, fails=True)
    probing = probe(breaker, FIRST_MS + 1_000)
    breaker.succeeded(slow, FIRST_MS + 1_001)
    breaker.abandoned(slow)
    assert breaker.state == "half_open"
    breaker.failed(probing, FIRST_MS + 1_002)
    assert breaker.state == "open"


class Reference:
    """What a circuit should do, told by the list of all that happened."""

    def __init__(self, rule: BreakerRule) -> None:
        self.rule = rule
        self.outcomes: list[tuple[int, bool]] = []
        self.until_ms: int | None = None
        self.pause_ms = rule.open_ms_min
        self.probe: Pass | None = None
        self.stale: set[Pass] = set()

    def end(self, leave: Pass, now_ms: int, *, failed: bool) -> None:
        if leave in self.stale:
            return
        if self.until_ms is not None:
            if leave != self.probe:
                return
            self.probe = None
            if failed:
                self.pause_ms = min(2 * self.pause_ms, self.rule.open_ms_max)
                self.until_ms = now_ms + self.pause_ms
            else:
                self.until_ms, self.pause_ms, self.outcomes = None, self.rule.open_ms_min, []
            return
        self.outcomes.append((now_ms, failed))
        slot_ms = self.rule.window_ms // 10
        recent = [bad for at, bad in self.outcomes if at // slot_ms > now_ms // slot_ms - 10]
        enough = len(recent) >= self.rule.calls_min and 2 * sum(recent) >= len(recent)
        if failed and enough:
            self.until_ms = now_ms + self.pause_ms


@settings(max_examples=examples(60, exploring=200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["admit", "ok", "fail", "leave"]), st.integers(0, 700)), max_size=120))
def test_it_agrees_with_a_reference_that_remembers_everything(steps: list[tuple[str, int]]) -> None:
    rule = BreakerRule(window_ms=1_000, calls_min=4, open_ms_min=300, open_ms_max=2_000)
    breaker, reference, now_ms = Breaker(rule), Reference(rule), FIRST_MS
    under_way: list[Pass] = []
    for what, pass_ms in steps:
        now_ms += pass_ms
        if what == "admit" or not under_way:
            leave = breaker.admit(now_ms)
            may = reference.until_ms is None or (now_ms >= reference.until_ms and reference.probe is None)
            assert isinstance(leave, Pass) == may
            if isinstance(leave, Pass):
                under_way.append(leave)
                if reference.until_ms is not None:
                    reference.probe = leave
                    reference.stale |= set(under_way[:-1])
            else:
                assert 0 < leave.retry_after_ms <= rule.open_ms_max
            continue
        leave = under_way.pop(0)
        was_open = reference.until_ms is not None
        if what == "leave":
            breaker.abandoned(leave)
            if leave == reference.probe:
                reference.probe = None
        elif what == "fail":
            breaker.failed(leave, now_ms)
            reference.end(leave, now_ms, failed=True)
        else:
            breaker.succeeded(leave, now_ms)
            reference.end(leave, now_ms, failed=False)
        if was_open != (reference.until_ms is not None):
            reference.stale |= set(under_way)
        assert (breaker.state == "closed") == (reference.until_ms is None)
        assert (breaker.state == "half_open") == (reference.probe is not None)
