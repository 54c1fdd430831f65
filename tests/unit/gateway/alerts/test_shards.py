"""What rules about shards look at: which replicas are missing, and which is furthest behind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.alerts.core.evaluate import Alert, observe
from gateway.alerts.core.rules import KINDS, Rule, default_clear_at
from gateway.alerts.core.shards import values
from gateway.api.shapes.clusters import ClusterShard

SHARD = ClusterShard(
    "0", "a", 1, ["a", "b", "c"], ["a", "b", "c"], ["a", "b", "c"], {"b": 0, "c": 7}, 2, "sync", serving=True
)


def value(kind: str, **changes: Any) -> float | None:
    ((subject, found),) = values(kind, [msgspec.structs.replace(SHARD, **changes)])
    assert subject == "shard-0"
    return found


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, 0),
        ({"in_sync": ["a", "b"]}, 1),
        ({"in_sync": []}, 3),
        # A copy is on its way from c to d: d is wanted and has not got everything yet.
        ({"wanted": ["a", "b", "d"]}, 1),
        # It has come, and c is about to go.
        ({"wanted": ["a", "b", "d"], "in_sync": ["a", "b", "c", "d"]}, 0),
    ],
)
def test_who_is_wanted_and_not_in_sync_is_missing(changes: dict[str, Any], missing: int) -> None:
    assert value("out_of_sync", **changes) == missing


@pytest.mark.parametrize(
    ("lag", "entries"),
    [({"b": 0, "c": 7}, 7), ({"b": 3, "c": None}, 3), ({"b": None, "c": None}, None), ({}, None)],
)
def test_the_lag_is_that_of_who_is_furthest_behind(lag: dict[str, int | None], entries: int | None) -> None:
    assert value("replica_lag", lag=lag) == entries


def test_a_shard_with_one_copy_lags_behind_nobody() -> None:
    assert value("replica_lag", lag={}, wanted=["a"]) == 0


def test_a_set_that_is_whole_but_for_what_the_rule_allows_is_well_again() -> None:
    """Replicas are few: a tenth on the good side of one of them would be none."""
    limit = 1.0
    rule = Rule(
        "r", "t", "n", "out_of_sync", "*", limit, default_clear_at(KINDS["out_of_sync"], limit), 0, 0, 60_000,
        "warning", (), True, "", None, None, 0, "me", 0,
    )  # fmt: skip
    states: list[str] = []
    alerts: dict[str, Alert] = {}
    for now_ms, missing in enumerate((0, 1, 2, 2, 1)):
        seen = observe(rule, alerts, [("shard-0", float(missing))], now_ms, lambda _: 0)
        alerts = seen.alerts
        states += [alert.state for alert in seen.changed]
    assert states == ["firing", "resolved"]
