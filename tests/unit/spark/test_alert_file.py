"""The rules that `anomalies` writes are those that a gateway takes."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from gateway.alerts.core.rules import KINDS
from gateway.alerts.limits import FOR_MS_MAX, TEXT_CHARS_MAX, WINDOW_MS_MAX, WINDOW_MS_MIN
from gateway.api.shapes.alerts import RuleBody
from gateway.commands import alert_file as command
from gateway.limits import NAME_CHARS_MAX
from spark.jobs import alert_file
from spark.jobs.alert_file import rules, written


def suggestion(measure: str = "held", side: str = "above", **more: Any) -> dict[str, Any]:
    row = {"tenant": "a", "queue": "q", "queue_uid": 1, "measure": measure, "side": side, "hours": 1}
    return row | {"usual_least": 7200.0, "usual_most": 7200.0, "low": 3600, "high": 10800, "score_max": 9.0} | more


@pytest.mark.parametrize(
    ("measure", "side", "kind", "limit"),
    [
        ("held", "above", "depth", 10_800),
        ("published", "above", "growth", 1.0),
        ("settled", "below", "growth", 1.0),
    ],
)
def test_what_waits_is_watched(measure: str, side: str, kind: str, limit: float) -> None:
    (rule,) = rules([suggestion(measure, side)])["a"]
    assert (rule["kind"], rule["queue"], rule["limit"]) == (kind, "q", limit)
    assert "in 1 hour, by up to 9.0 deviations" in rule["note"]


@pytest.mark.parametrize(("measure", "side"), [("published", "below"), ("held", "below"), ("settled", "above")])
def test_what_no_alert_looks_for_makes_no_rule(measure: str, side: str) -> None:
    assert rules([suggestion(measure, side)]) == {}


def test_a_limit_that_anything_passes_makes_no_rule() -> None:
    assert rules([suggestion("published", high=7200)]) == {}


def test_each_tenant_has_rules_of_its_own_and_one_of_a_name() -> None:
    found = rules([suggestion(), suggestion(high=1, queue_uid=2), suggestion(tenant="b")])
    assert {tenant: [rule["limit"] for rule in theirs] for tenant, theirs in found.items()} == {
        "a": [10_800],
        "b": [10_800],
    }


def test_files_are_read_by_the_command_and_rules_have_the_fields_of_the_api() -> None:
    found = rules([suggestion(measure, "above", queue="q" * 128) for measure in ("held", "published")])["a"]
    assert command.read(io.BytesIO(written(found).encode())) == found
    for rule in found:
        body = msgspec.convert(rule, RuleBody)
        assert body.kind in KINDS and 1 <= len(body.name) <= NAME_CHARS_MAX and len(body.note) <= TEXT_CHARS_MAX
        assert body.for_ms <= FOR_MS_MAX and WINDOW_MS_MIN <= body.window_ms <= WINDOW_MS_MAX


def test_both_sides_have_the_same_bounds() -> None:
    assert (alert_file.VERSION, alert_file.NAME_CHARS_MAX) == (command.VERSION, NAME_CHARS_MAX)
    assert alert_file.RULES_MAX <= command.RULES_MAX
