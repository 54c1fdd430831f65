"""What is served from memory, minute by minute: fresh while the service is heard, stale to a bound when it is not."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.cached import EXCUSE_MS, TOLD_MAX, Bounds, Cache, Must

FRESH, STALE = 5_000, 60_000


class At(NamedTuple):
    revision: int
    era: str = "era"


def cache(entries_max: int = 100, absent_max: int = 100) -> Cache[str, str]:
    made: Cache[str, str] = Cache(
        Bounds(entries_max=entries_max, absent_max=absent_max, fresh_ms=FRESH, stale_ms_max=STALE)
    )
    made.heard(0)
    return made


def fetched(held: Cache[str, str], key: str, value: str | None, now_ms: int = 0, revision: int = 1) -> None:
    held.begin(key)
    assert held.answered(key, value, At(revision), now_ms)


def test_what_is_not_held_must_be_asked_for() -> None:
    held = cache()
    assert held.peek("q", 0) is Must.ASK
    assert (held.hits, held.misses) == (0, 1)


def test_what_is_held_is_fresh_as_long_as_the_service_is_heard() -> None:
    held = cache()
    fetched(held, "q", "v")
    for now_ms in range(0, 100 * STALE, FRESH):
        held.heard(now_ms)
        assert held.peek("q", now_ms) == "v"
    assert held.stale == 0


def test_what_is_held_is_served_stale_up_to_a_bound_when_the_service_is_silent() -> None:
    held = cache()
    fetched(held, "q", "v")
    assert held.peek("q", FRESH) == "v" and held.stale == 0
    assert held.peek("q", FRESH + 1) == "v" and held.stale == 1
    assert held.peek("q", STALE) == "v" and held.age_ms(STALE) == STALE
    assert held.peek("q", STALE + 1) is Must.ASK


def test_what_changed_is_not_served_again_even_when_nobody_can_be_asked() -> None:
    held = cache()
    fetched(held, "q", "v")
    held.changed("q", At(2), 10)
    assert held.peek("q", 10) is Must.ASK
    held.begin("q")
    assert not held.unanswered("q", 20)
    assert held.peek("q", 20) is Must.ASK


def test_absence_is_remembered_for_seconds_and_ends_with_a_change() -> None:
    held = cache()
    fetched(held, "q", None)
    assert held.peek("q", FRESH - 1) is None
    assert held.peek("q", FRESH) is Must.ASK
    fetched(held, "r", None)
    held.changed("r", At(2), 1)
    assert held.peek("r", 1) is Must.ASK


def test_an_answer_that_was_overtaken_by_a_change_does_not_hold() -> None:
    held = cache()
    held.begin("q")
    held.changed("q", At(5), 10)
    assert not held.answered("q", "old", At(4), 20)
    held.begin("q")
    assert held.answered("q", "new", At(5), 30)
    assert held.peek("q", 30) == "new"


def test_an_answer_of_a_host_that_has_not_heard_of_a_change_does_not_hold() -> None:
    """The news come by one host, and another one answers: nobody would ever call it changed again."""
    held = cache()
    fetched(held, "q", "v")
    held.changed("q", At(5), 10)
    held.begin("q")
    assert not held.answered("q", "old", At(4), 20)
    assert held.peek("q", 20) is Must.ASK
    fetched(held, "q", "new", 30, revision=5)
    assert held.peek("q", 30) == "new"
    held.changed("unknown", At(6), 40)
    held.begin("unknown")
    assert not held.answered("unknown", None, At(5), 50)
    fetched(held, "other", "v", 60, revision=5)


def test_what_is_forgotten_of_old_changes_is_a_floor_for_all_keys() -> None:
    held = cache()
    for number in range(TOLD_MAX + 1):
        held.changed(f"k{number}", At(number + 1), 0)
    held.begin("k0")
    assert not held.answered("k0", "old", At(0), 0)
    fetched(held, "k0", "new", revision=1)
    held.doubt(At(TOLD_MAX + 5))
    held.begin("k0")
    assert not held.answered("k0", "old", At(TOLD_MAX + 4), 0)
    fetched(held, "k0", "new", revision=TOLD_MAX + 5)
    held.begin("k0")
    assert held.answered("k0", "newer", At(1, "another era"), 0), "moments of two eras cannot be compared"


def test_an_answer_from_before_the_service_forgot_us_does_not_hold() -> None:
    held = cache()
    held.begin("q")
    held.doubt(At(0))
    assert not held.answered("q", "old", At(4), 20)


def test_after_a_restart_of_the_service_what_is_held_is_asked_for_within_the_bound() -> None:
    held = cache()
    fetched(held, "q", "v")
    held.heard(1_000)
    held.doubt(At(0))
    held.heard(2_000)
    assert held.peek("q", 1_000 + FRESH) == "v"
    held.heard(1_000 + FRESH + 1)
    assert held.peek("q", 1_000 + FRESH + 1) is Must.ASK


def test_what_is_in_doubt_serves_as_long_as_nobody_answers() -> None:
    held = cache()
    fetched(held, "q", "v")
    held.doubt(At(0))
    now_ms = FRESH + 1
    held.heard(now_ms)
    assert held.peek("q", now_ms) is Must.ASK
    held.begin("q")
    assert held.unanswered("q", now_ms)
    assert held.peek("q", now_ms) == "v"
    held.heard(now_ms + EXCUSE_MS)
    assert held.peek("q", now_ms + EXCUSE_MS) is Must.ASK
    held.begin("q")
    assert not held.unanswered("q", STALE + 1), "the bound holds all the same"


def test_a_flood_of_names_asked_for_once_does_not_drive_out_what_is_in_use() -> None:
    held = cache(entries_max=10)
    fetched(held, "in use", "v")
    for number in range(1_000):
        assert held.peek("in use", 0) == "v"
        fetched(held, f"once {number}", "v")
        assert len(held) <= 10


def test_absent_names_are_bounded_and_take_no_room_from_the_others() -> None:
    held = cache(entries_max=10, absent_max=10)
    fetched(held, "q", "v")
    for number in range(1_000):
        fetched(held, f"absent {number}", None)
    assert held.peek("q", 0) == "v" and len(held._absent) == 10


def test_a_session_goes_on_for_a_moment_while_its_key_is_asked_for_anew() -> None:
    held = cache()
    fetched(held, "k", "v")
    held.changed("k", At(2), 1_000)
    assert held.may_go_on("k", 1_000 + FRESH)
    assert not held.may_go_on("k", 1_000 + FRESH + 1)
    assert not held.may_go_on("unknown", 0)


def test_a_session_goes_on_through_an_outage_up_to_the_bound() -> None:
    held = cache()
    fetched(held, "k", "v")
    assert held.may_go_on("k", STALE) and not held.may_go_on("k", STALE + 1)


class Service(RuleBasedStateMachine):
    """A service whose values change, an order of news that may be late, and answers that may be overtaken.

    The promise: what is served was true at most `FRESH` ago while the news come, and `STALE` ago otherwise; and what
    was heard to have changed is never served again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache: Cache[str, str] = Cache(Bounds(entries_max=2, absent_max=1, fresh_ms=FRESH, stale_ms_max=STALE))
        self.now_ms = 0
        self.era, self.revision = 0, 0
        self.values: dict[str, str | None] = {"a": "0", "b": "0", "c": "0"}
        self.until: dict[tuple[str, str | None], int] = {}
        """(key, value) → until when it was true, for values that no longer are."""
        self.news: list[tuple[str, At]] = []
        self.caught_up_ms = 0
        """Up to when all news have been heard."""
        self.behind: dict[str, tuple[str | None, At]] = {}
        """What a host that has not heard of the last change of a key says of it, and its moment."""
        self.asked: dict[str, tuple[str | None, At] | None] = {}
        self.heard_changed: set[tuple[str, str | None]] = set()
        self.counter = 0

    @rule(ms=st.integers(1, 20_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(key=st.sampled_from("abc"), is_gone=st.booleans())
    def changes(self, key: str, is_gone: bool) -> None:
        self.counter += 1
        self.behind[key] = self.values[key], At(self.revision, str(self.era))
        self.revision += 1
        self.until[key, self.values[key]] = self.now_ms
        self.values[key] = None if is_gone else str(self.counter)
        self.news.append((key, At(self.revision, str(self.era))))

    @rule()
    def all_news_are_heard(self) -> None:
        for key, at in self.news:
            self.cache.changed(key, at, self.now_ms)
            self.heard_changed |= {pair for pair in self.until if pair[0] == key and pair[1] != self.values[key]}
        self.news.clear()
        self.cache.heard(self.now_ms)
        self.caught_up_ms = self.now_ms

    @rule()
    def restarts(self) -> None:
        self.era += 1
        self.revision = 0
        self.news.clear()
        self.behind.clear()
        self.cache.doubt(At(self.revision, str(self.era)))
        self.cache.heard(self.now_ms)
        self.caught_up_ms = self.now_ms

    @rule(key=st.sampled_from("abc"))
    def asks(self, key: str) -> None:
        if key not in self.asked:
            self.cache.begin(key)
            self.asked[key] = None

    @precondition(lambda self: any(v is None for v in self.asked.values()))
    @rule(data=st.data(), is_behind=st.booleans())
    def the_service_reads(self, data: st.DataObject, is_behind: bool) -> None:
        key = data.draw(st.sampled_from([k for k, v in self.asked.items() if v is None]))
        now = self.values[key], At(self.revision, str(self.era))
        self.asked[key] = self.behind.get(key, now) if is_behind else now

    @precondition(lambda self: any(v is not None for v in self.asked.values()))
    @rule(data=st.data(), comes=st.booleans())
    def the_answer_comes_at_once_after_it_was_read(self, data: st.DataObject, comes: bool) -> None:
        key = data.draw(st.sampled_from([k for k, v in self.asked.items() if v is not None]))
        answer = self.asked.pop(key)
        assert answer is not None
        value, at = answer
        if not comes or (at.era == str(self.era) and self.until.get((key, value), self.now_ms) < self.now_ms):
            # Lost; or so late that it proves nothing of this moment: a deadline of a look-up bounds that.
            self.cache.unanswered(key, self.now_ms)
        else:
            self.cache.answered(key, value, at, self.now_ms)

    @invariant()
    def what_is_served_was_true_lately(self) -> None:
        for key in self.values:
            found = self.cache.peek(key, self.now_ms)
            if isinstance(found, Must) or found == self.values[key]:
                continue
            ended_ms = self.until[key, found]
            bound = FRESH if self.caught_up_ms == self.now_ms or found is None else STALE
            assert self.now_ms - ended_ms <= bound, f"{key}={found} ended {self.now_ms - ended_ms} ms ago"
            if found is not None and self.era == 0:
                assert (key, found) not in self.heard_changed


TestService = Service.TestCase
