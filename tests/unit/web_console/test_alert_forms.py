"""Forms about alert rules: what they begin with, and what they send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from web_console import alert_acts
from web_console.forms import duration, number, version, whole
from web_console.pages.alerts import draft
from web_console.visit import Problem
from web_console.wording import decimal
from web_console.wording import duration as written

DEPTH = {"kind": "depth", "direction": "above", "fields": ["limit", "clear_at", "queue"]}
KEY_DAYS = {"kind": "key_days", "direction": "below", "fields": ["limit", "clear_at"]}
GROWTH = {"kind": "growth", "direction": "above", "fields": ["limit", "clear_at", "window_ms", "queue"]}
SLO = {"kind": "slo_availability", "direction": "above", "fields": ["objective", "queue"]}


def rule(kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "rule_1",
        "name": "deep",
        "kind": kind,
        "queue": "*",
        "limit": 1000.0,
        "clear_at": 900.0,
        "for_ms": 0,
        "keep_ms": 90_000,
        "window_ms": 60_000,
        "severity": "critical",
        "receivers": ["receiver_1"],
        "enabled": True,
        "note": "call Ann",
        "objective": None,
        "latency_ms": None,
        **fields,
    }


@pytest.mark.parametrize("ms", [1, 999, 1_000, 90_000, 300_000, 7_200_000, 86_400_000])
def test_a_time_is_read_as_it_is_written(ms: int) -> None:
    assert duration({"for_ms": written(ms)}, "for_ms") == ms


def test_a_time_that_is_none_is_refused_with_its_field() -> None:
    assert duration({"for_ms": " "}, "for_ms") is None
    with pytest.raises(Problem, match="for_ms is '5 weeks'"):
        duration({"for_ms": "5 weeks"}, "for_ms")


@pytest.mark.parametrize("text", ["1e4", "1_000", "٣", "+1", ".5", "1.", "0x10", "inf", "nan", "1,000", "--1", "²"])
def test_a_number_is_of_plain_decimal_digits(text: str) -> None:
    for read in (number, whole):
        with pytest.raises(Problem, match="limit is "):
            read({"limit": text}, "limit")


@pytest.mark.parametrize("text", ["", "*", "orders", '""', '"a", "b"', '"*"'])
def test_a_form_without_the_state_that_it_changes_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="open its page again"):
        version({"etag": text})
    assert version({"etag": '"12.3"'}) == {"if-match": '"12.3"'}


@pytest.mark.parametrize("value", [0.0, -5.0, 0.1, 99.95, 123456.789, 1e-9, 1e20, 1.7e308])
def test_a_number_is_read_as_it_is_written(value: float) -> None:
    assert number({"limit": decimal(value)}, "limit") == value


def test_a_rule_that_is_saved_as_it_was_stays_as_it_was() -> None:
    """Of fields that its kind does not take nothing is sent: the server would refuse them."""
    for kind, known in (
        (DEPTH, rule("depth")),
        (DEPTH, rule("depth", clear_at=1.5, enabled=False, receivers=[])),
        (GROWTH, rule("growth", window_ms=120_000)),
        (KEY_DAYS, rule("key_days", limit=14.0, clear_at=15.4)),
        (SLO, rule("slo_availability", limit=1.0, clear_at=0.9, objective=99.9)),
    ):
        filled = draft(known, kind)
        form = {name: str(value) for name, value in filled.items() if name not in ("receivers", "enabled")}
        form |= {f"receiver.{one}": "on" for one in filled["receivers"]} | (
            {"enabled": "on"} if filled["enabled"] else {}
        )
        sent = alert_acts._rule(form)
        assert not set(sent) & ({"limit", "clear_at", "window_ms", "objective", "latency_ms"} - set(kind["fields"]))
        assert {name: known[name] for name in sent} == sent


def test_where_an_alert_is_over_goes_with_the_limit_unless_somebody_said_where() -> None:
    assert draft(rule("depth"), DEPTH)["clear_at"] == ""
    assert draft(rule("depth", clear_at=500.0), DEPTH)["clear_at"] == "500"
    assert draft(rule("key_days", limit=14.0, clear_at=15.4), KEY_DAYS)["clear_at"] == ""


def test_how_a_test_went_is_said_in_words() -> None:
    took = {"receiver": "r", "ok": True, "status": 204, "error": None, "ms": 12}
    assert alert_acts._outcome(took) == "accepted it (204, 12 ms)"
    refused = {"receiver": "r", "ok": False, "status": None, "error": "no answer", "ms": 9}
    assert alert_acts._outcome(refused) == "rejected it (no answer)"


class Asking:
    """A visit whose server makes each silence it is asked for."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def ask(self, method: str, path: str, body: dict[str, Any]) -> SimpleNamespace:
        self.bodies.append(body)
        return SimpleNamespace(json=lambda: {"ends_at": "2026-11-30T21:00:00Z", "mutes": 0})


@pytest.mark.anyio
@pytest.mark.parametrize(("typed", "duration_ms"), [("", 3_600_000), ("5", 300_000), ("0", 0)])
async def test_a_silence_lasts_for_the_minutes_that_were_typed(typed: str, duration_ms: int) -> None:
    visit = Asking()
    await alert_acts.silence(visit, {"queue": "*", "reason": "r", "minutes": typed})  # type: ignore[arg-type]
    assert visit.bodies[0]["duration_ms"] == duration_ms
