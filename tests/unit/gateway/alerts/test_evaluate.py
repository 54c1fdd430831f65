"""Rules decide: no flapping, one alert for a rule and a subject, and never sooner or later than they say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.core import evaluate
from gateway.alerts.core.evaluate import Alert, observe
from gateway.alerts.core.rules import Rule

RULE = Rule(
    "r", "default", "deep", "depth", "*", 100, 90, 0, 0, 60_000, "warning", (), True, "", None, None, 0, "me", 0
)


def ruled(**changes: object) -> Rule:
    return msgspec.structs.replace(RULE, **changes)


def no_line(subject: str) -> int:
    return 0


def told(rule: Rule, values: list[tuple[int, float | None]]) -> list[tuple[int, str]]:
    """The transitions of one subject, with their times."""
    alerts: dict[str, Alert] = {}
    found = []
    for at, value in values:
        seen = observe(rule, alerts, [("q", value)], at, no_line)
        alerts = seen.alerts
        found += [(at, alert.state) for alert in seen.changed]
    return found


def test_past_the_limit_fires_at_once_without_for() -> None:
    assert told(RULE, [(0, 100), (1, 101), (2, 500), (3, 90)]) == [(1, "firing"), (3, "resolved")]


def test_below_the_limit_where_less_is_worse() -> None:
    rule = ruled(kind="certificate_days", limit=14, clear_at=15)
    assert told(rule, [(0, 20), (1, 13.9), (2, 14.5), (3, 15)]) == [(1, "firing"), (3, "resolved")]


def test_for_waits_and_a_dip_begins_anew() -> None:
    rule = ruled(for_ms=10)
    values: list[tuple[int, float | None]] = [(0, 101), (5, 101), (8, 99), (9, 101), (18, 101), (19, 101)]
    assert told(rule, values) == [(0, "pending"), (9, "pending"), (19, "firing")]


def test_keep_holds_until_it_was_clear_for_long_enough() -> None:
    rule = ruled(keep_ms=10)
    assert told(rule, [(0, 101), (1, 50), (9, 95), (12, 50), (21, 50), (22, 50)]) == [(0, "firing"), (22, "resolved")]


def test_what_is_not_known_changes_nothing() -> None:
    assert told(RULE, [(0, None), (1, 101), (2, None), (3, 101), (4, None), (5, 1)]) == [(1, "firing"), (5, "resolved")]


def test_a_subject_that_is_gone_has_no_alert() -> None:
    firing = observe(RULE, {}, [("a", 200.0), ("b", 300.0)], 0, no_line).alerts
    seen = observe(RULE, firing, [("b", 300.0)], 1, no_line)
    assert set(seen.alerts) == {"b"} and [(a.subject, a.state) for a in seen.changed] == [("a", "resolved")]


def test_the_number_of_alerts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "ALERTS_PER_RULE_MAX", 3)
    seen = observe(RULE, {}, [(str(n), 200.0) for n in range(10)], 0, no_line)
    assert len(seen.alerts) == 3 and seen.omitted == 7
    again = observe(RULE, seen.alerts, [(str(n), 200.0) for n in range(10)], 1, no_line)
    assert again.alerts.keys() == seen.alerts.keys() and again.changed == [] and again.omitted == 7
    fewer = observe(RULE, again.alerts, [(str(n), 200.0 if n else 0.0) for n in range(10)], 2, no_line)
    assert set(fewer.alerts) == {"1", "2", "3"} and fewer.omitted == 6


VALUES = st.lists(st.tuples(st.integers(1, 20), st.none() | st.integers(60, 140)), min_size=1, max_size=60)


@given(VALUES, st.integers(0, 40), st.integers(0, 40))
def test_firing_and_resolved_take_turns_and_keep_their_times(
    steps: list[tuple[int, int | None]], for_ms: int, keep_ms: int
) -> None:
    rule, at, values = ruled(for_ms=for_ms, keep_ms=keep_ms), 0, []
    for pause, value in steps:
        at += pause
        values.append((at, None if value is None else float(value)))
    changes = [change for change in told(rule, values) if change[1] != "pending"]
    assert [state for _, state in changes] == ["firing", "resolved"] * (len(changes) // 2) + ["firing"] * (
        len(changes) % 2
    )
    for when, state in changes:
        window = for_ms if state == "firing" else keep_ms
        seen = [value for time, value in values if when - window <= time <= when and value is not None]
        assert all(value > 100 for value in seen) if state == "firing" else all(value <= 90 for value in seen)


@given(st.lists(st.integers(91, 140), min_size=2, max_size=80))
def test_a_value_that_trembles_at_the_limit_fires_once(values: list[int]) -> None:
    changes = told(RULE, [(at, float(value)) for at, value in enumerate(values)])
    assert len(changes) <= 1


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(60, 140)), max_size=40))
def test_a_rule_has_one_alert_for_a_subject(looks: list[dict[str, int]]) -> None:
    alerts: dict[str, Alert] = {}
    open_ids: dict[str, str] = {}
    for at, look in enumerate(looks):
        seen = observe(RULE, alerts, [(s, float(v)) for s, v in look.items()], at, no_line)
        alerts = seen.alerts
        for alert in seen.changed:
            if alert.state == "firing":
                assert alert.subject not in open_ids
                open_ids[alert.subject] = alert.id
            else:
                assert open_ids.pop(alert.subject) == alert.id
        assert {s: a.id for s, a in alerts.items()} == open_ids


def test_what_was_found_by_a_clock_ahead_waits_no_longer_than_the_rule_says() -> None:
    """Another gateway's, or this one's before it was set back."""
    rule = ruled(for_ms=10, keep_ms=10)
    back = 3_600_000
    values: list[tuple[int, float | None]] = [(back, 101), (0, 101), (9, 101), (10, 101)]
    assert told(rule, values) == [(back, "pending"), (10, "firing")]
    values = [(back, 101), (back + 10, 101), (back + 11, 50), (0, 50), (10, 50)]
    assert told(rule, values) == [(back, "pending"), (back + 10, "firing"), (10, "resolved")]
