"""The outcome of rate limits for one request."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from throttling.rules import Rule

NS_PER_MS = 1_000_000


class Charge(NamedTuple):
    """What a request costs one subject under one rule."""

    rule: Rule
    subject: str
    cost: int


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one hit on all its rules: counted in each of them, or in none."""

    allowed: bool
    rule: Rule
    """The rule that refused; for an allowed hit, the rule with the least left."""
    subject: str
    remaining: int
    """How much that rule still allows at this moment."""
    retry_after_ns: int | None = 0
    """Time until the same cost would be allowed; 0 if it was; None: never, as the cost is above the quota."""
    is_store_away: bool = False
    """Refused because the shared counts cannot be reached."""

    @property
    def retry_after_ms(self) -> int:
        return max(1, -(-(self.retry_after_ns or 0) // NS_PER_MS))


def tighter(a: Outcome | None, b: Outcome) -> Outcome:
    """Of two allowed hits, the one with the smaller share left."""
    if a is None or b.remaining * a.rule.quota < a.remaining * b.rule.quota:
        return b
    return a
