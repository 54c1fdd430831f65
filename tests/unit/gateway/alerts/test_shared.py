"""What of alerts is written down, what a gateway that only reads makes of it, and requests of several gateways."""

from __future__ import annotations

import msgspec
import pytest

from gateway.alerts.core.evaluate import Alert, State
from gateway.alerts.core.shared import Line, kept, missed
from gateway.alerts.core.tallies import MINUTES_KEPT, Tallies
from gateway.alerts.stored import telling_id


def alert(state: State, value: float = 1.0, quiet_since_ms: int | None = None) -> Alert:
    fired = None if state == "pending" else 7
    return Alert("rule.q.5", "rule", "q", state, value, 5, fired, None, quiet_since_ms)


@pytest.mark.parametrize(
    ("before", "after", "alone", "shared"),
    [
        (None, alert("pending"), "", "put"),
        (alert("pending"), alert("pending", 2.0), "", ""),
        (alert("pending"), None, "", "gone"),
        (alert("pending"), alert("firing"), "put", "put"),
        (None, alert("firing"), "put", "put"),
        (alert("firing"), alert("firing", 2.0), "", ""),
        (alert("firing"), alert("firing", 1.0, 9), "", "put"),
        (alert("firing"), None, "gone", "gone"),
    ],
)
def test_what_another_one_needs_to_go_on_is_written_down_and_values_are_not(
    before: Alert | None, after: Alert | None, alone: str, shared: str
) -> None:
    for with_pending, expected in ((False, alone), (True, shared)):
        found = kept(*({one.subject: one} if one else {} for one in (before, after)), with_pending=with_pending)
        assert ("put" if found.put else "gone" if found.gone else "") == expected


def test_a_reader_shows_alerts_as_the_teller_has_them() -> None:
    known = alert("pending")
    lines = [Line("rule.q.5", "q", "rule", "firing", 3.0, 7, 5), Line("rule.q.5", "q", "rule", "resolved", 0.0, 9, 5)]
    fired, over = missed(lines, {known.id: known})
    assert fired == msgspec.structs.replace(alert("firing"), value=3.0)
    assert (over.state, over.value, over.since_ms, over.fired_at_ms, over.resolved_at_ms) == ("resolved", 0.0, 5, 7, 9)
    assert missed(lines, {}) == [fired, over], "and one that it had never seen"


def test_lines_of_older_programs_say_with_the_id_since_when_an_alert_was_there() -> None:
    (fired,) = missed([Line("rule.q.5", "q", "rule", "firing", 3.0, 7, None)], {})
    assert fired.since_ms == 5


def test_a_webhook_has_the_same_id_whoever_sends_it_and_each_change_and_receiver_another() -> None:
    ids = {telling_id(alert(state), receiver) for state in ("firing", "resolved") for receiver in ("one", "two")}
    assert len(ids) == 4 and telling_id(alert("firing", 9.0), "one") in ids


def test_requests_of_gateways_are_added_up_however_often_they_say_them() -> None:
    tallies = Tallies()
    tallies.take("a", {1: {"r": (10, 1)}})
    tallies.take("b", {1: {"r": (5, 5)}, 2: {"r": (1, 0)}})
    tallies.take("a", {1: {"r": (20, 2)}, 2: {}})
    assert tallies.totals(1, ["r", "other"]) == {"r": (25, 7), "other": (0, 0)}
    tallies.take("a", {3: {"r": (1, 1)}})
    assert tallies.totals(1, ["r"]) == {"r": (25, 7)}, "what it does not speak of any more stays"
    tallies.take("a", {1 + MINUTES_KEPT: {}})
    assert tallies.totals(1, ["r"]) == {"r": (5, 5)}
    tallies.forget_before(3)
    assert tallies.totals(2, ["r"]) == {"r": (0, 0)}
