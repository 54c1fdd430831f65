"""Alerts while somebody sets the clock: what a rule waits for takes as long as it says."""

from __future__ import annotations

import pytest

from backend_store.client import Store
from backend_store.model import QueueConfig
from gateway.alerts.core.rules import Rule
from gateway.alerts.core.slo import SLO_MINUTES, Budget
from gateway.alerts.core.tallies import Tallies
from gateway.app import create_app
from gateway.config.settings import Settings
from tests.support.queues import draft
from tests.support.stores import drained, published
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

RULE = Rule(
    "rule_1", "default", "deep", "depth", "*", 0, 0, 60_000, 60_000, 60_000, "warning", (), True, "", None, None, 0,
    "me", 0,
)  # fmt: skip
HOUR_MS = 3_600_000


@pytest.mark.parametrize("hours", [-24, -1, 1, 24 * 365])
async def test_an_alert_waits_as_long_as_its_rule_says_while_the_clock_is_set(
    store: Store, clock: Clock, hours: int
) -> None:
    """It fired at once, or hours late; and was over at once, or never."""
    wall = Clock()
    app = create_app(store, Settings(), clock_ms=wall)
    alerts, sampler = app.gateway.watching.alerts, app.gateway.sampler
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    await alerts.put_rule(RULE, None)

    async def look(*, after_ms: int = 10_000) -> str:
        wall.ms += after_ms
        clock.ms += after_ms
        await sampler.look()
        return next((alert.state for alert in alerts.open.get("rule_1", {}).values()), "none")

    await published(queue, draft("1"))
    states = [await look() for _ in range(3)]
    wall.ms += hours * HOUR_MS
    states += [await look() for _ in range(4)]
    assert states == ["pending"] * 6 + ["firing"]
    await drained(queue)
    states = [await look() for _ in range(3)]
    wall.ms -= hours * HOUR_MS
    states += [await look() for _ in range(4)]
    assert states == ["firing"] * 6 + ["none"]
    await app.gateway.hub.close()


def test_requests_of_a_gateway_count_after_its_clock_was_set_back() -> None:
    """An SLO saw none until the clock had caught up."""
    tallies = Tallies()
    tallies.take("one", {1_060: {"r": (10, 5)}})
    tallies.take("one", {1_000: {"r": (10, 7)}})
    assert tallies.totals(1_000, ["r"]) == {"r": (10, 7)}


def test_a_minute_counts_though_a_clock_far_ahead_counted_in_its_place() -> None:
    budget = Budget([(600, 100, 0)])
    budget.put(600 + 1_000 * SLO_MINUTES, 10, 0)
    budget.put(600, 100, 50)
    assert budget.counts(600, 1) == (100, 50)
