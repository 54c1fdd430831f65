"""Counts requests against one rule, in this process's memory; the gateway asks it on every `/v1` request."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from throttling.config import PRINCIPALS_MAX
from throttling.decision import Decision
from throttling.gcra import decide
from throttling.rules import PER_PRINCIPAL, Rule

# Two looked at for each one added: the table shrinks again after a rush, and no request waits for a sweep.
_LOOKED_AT_PER_NEW = 2


class MemoryLimiter:
    """One rule for many principals. A hit takes O(1); idle principals are forgotten, which changes no decision.

    When `principals_max` principals are all busy, the longest known one is forgotten for a new one: it gets a fresh
    burst, and `forgotten_busy_total` counts it.
    """

    def __init__(
        self,
        rule: Rule = PER_PRINCIPAL,
        *,
        principals_max: int = PRINCIPALS_MAX,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        assert principals_max >= 1
        self.rule = rule
        self.forgotten_busy_total = 0
        self._principals_max = principals_max
        self._clock_ns = clock_ns
        # Principal -> theoretical arrival time, longest known first. Plain dicts find their first key in O(n) after
        # many removals at the front; this one does not.
        self._tats: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tats)

    def hit(self, principal: str, cost: int = 1) -> Decision:
        """Count a request of `principal`, and say whether it may go on."""
        now = self._clock_ns()
        rule = self.rule
        tats = self._tats
        tat = tats.get(principal)
        if tat is None:
            tat = 0
            self._make_room(now)
        decision = decide(tat, now, rule.rate, rule.quota, cost)
        tats[principal] = decision.new_tat
        return decision

    def _make_room(self, now: int) -> None:
        tats = self._tats
        for _ in range(min(_LOOKED_AT_PER_NEW, len(tats))):
            principal = next(iter(tats))
            if tats[principal] <= now:
                del tats[principal]
            else:
                tats.move_to_end(principal)
        if len(tats) >= self._principals_max:
            tats.popitem(last=False)
            self.forgotten_busy_total += 1
