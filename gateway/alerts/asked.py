"""Skips rules that need no evaluation: nothing happened to their queues, and they found nothing the last time."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from gateway.alerts.core.rules import Rule
from gateway.series.book import PAUSE_SLOTS_MAX, Book
from gateway.series.core.ring import TIERS

ABOUT_LEVELS: Final = frozenset({"depth", "dead_letters", "consumer_absence", "total_depth", "total_dead_letters"})
"""Kinds whose values change only when something happens to a queue."""
ABOUT_WINDOWS: Final = frozenset(
    {"growth", "dead_letter_rate", "redelivery_rate"}
    | {"total_growth", "total_dead_letter_rate", "total_redelivery_rate"}
)
"""Kinds about what happened to a queue lately."""
_SLACK_MS: Final = 2 * PAUSE_SLOTS_MAX * TIERS[0].step_ms


class Asked(NamedTuple):
    """A rule's last evaluation: when, and at which versions of its tenant's queues. `holds_ms`: how long its result
    cannot change by time alone."""

    rule: Rule
    version: int
    changes: int
    at_ms: int
    holds_ms: float


class AskedRules:
    """The last evaluation of each rule; owned by `Alerts`."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._asked: dict[str, Asked] = {}

    def is_as_before(self, rule: Rule, now_ms: int) -> bool:
        """Whether a rule without an open alert would still find none."""
        asked, happened = self._asked.get(rule.id), self._book.happened_to(rule.tenant)
        if asked is None or asked.rule is not rule:
            return False
        if (asked.version, asked.changes) != (happened.version, happened.changes):
            return False
        if rule.kind in ABOUT_WINDOWS:
            # By the time of that evaluation the whole window was quiet already.
            return happened.changed_ms + rule.window_ms + _SLACK_MS < asked.at_ms <= now_ms
        return asked.at_ms <= now_ms < asked.at_ms + asked.holds_ms

    def note(self, rule: Rule, values: Iterable[tuple[str, float | None]], now_ms: int) -> None:
        happened = self._book.happened_to(rule.tenant)
        self._asked[rule.id] = Asked(rule, happened.version, happened.changes, now_ms, _holds_ms(rule, values))

    def forget(self, rule_id: str) -> None:
        self._asked.pop(rule_id, None)


def _holds_ms(rule: Rule, values: Iterable[tuple[str, float | None]]) -> float:
    if rule.kind in ABOUT_LEVELS:
        return inf
    if rule.kind == "oldest_age_ms":
        return rule.limit - max((value for _, value in values if value is not None), default=0)
    return 0
