"""Counts requests against rules, in this process's memory; the gateway calls it for every `/v1` request."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from throttling.config import LOOKED_AT_PER_NEW, SUBJECTS_MAX
from throttling.decision import Charge, Outcome, tighter
from throttling.gcra import decide
from throttling.rules import Rule


class Limiter(Protocol):
    """Counts requests against rates."""

    def hit(self, charges: Sequence[Charge]) -> Outcome | None:
        """Counts a request in all of its rules, or in none. None: only `ask` can decide."""

    async def ask(self, charges: Sequence[Charge]) -> Outcome:
        """`hit`, when counts have to be fetched. Takes no longer than a timeout."""

    async def close(self) -> None: ...


class MemoryLimiter:
    """The counts of one process: exact, and lost with it. A hit takes about a microsecond for each rule.

    The table of a rule is bounded. Idle subjects are forgotten, which changes no decision. If all that were checked are
    busy, the one that owes the least is forgotten: a caller that wants a busy subject forgotten has to be as busy as
    that one, with many subjects of its own.
    """

    def __init__(self, *, subjects_max: int = SUBJECTS_MAX, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        assert subjects_max >= 1
        self.forgotten_busy: Counter[str] = Counter()
        """By rule: subjects that were forgotten although they were busy."""
        self._subjects_max = subjects_max
        self._clock_ns = clock_ns
        # Rule → subject → theoretical arrival time, longest not checked first. Plain dicts find their first key in O(n)
        # after many removals at the front; these do not.
        self._tables: dict[str, OrderedDict[str, int]] = {}

    def subjects(self, rule: str) -> int:
        """How many subjects a rule has state for."""
        return len(self._tables.get(rule, ()))

    def hit(self, charges: Sequence[Charge]) -> Outcome:
        now = self._clock_ns()
        if len(charges) == 1:
            return self._hit_one(charges[0], now)
        kept: list[tuple[Rule, str, int]] = []
        least: Outcome | None = None
        for rule, subject, cost in charges:
            tat = self._table(rule).get(subject, 0)
            decision = decide(tat, now, rule.window_ns, rule.quota, cost)
            if not decision.allowed:
                return Outcome(False, rule, subject, decision.remaining, decision.retry_after)
            kept.append((rule, subject, decision.new_tat))
            least = tighter(least, Outcome(True, rule, subject, decision.remaining))
        for rule, subject, tat in kept:
            table = self._table(rule)
            if subject not in table:
                self._make_room(rule, table, now)
            table[subject] = tat
        assert least is not None, "a hit without a charge"
        return least

    def _hit_one(self, charge: Charge, now: int) -> Outcome:
        rule, subject, cost = charge
        table = self._table(rule)
        tat = table.get(subject)
        allowed, remaining, retry_after, new_tat = decide(tat or 0, now, rule.window_ns, rule.quota, cost)
        if allowed:
            if tat is None:
                self._make_room(rule, table, now)
            table[subject] = new_tat
        return Outcome(allowed, rule, subject, remaining, retry_after)

    async def ask(self, charges: Sequence[Charge]) -> Outcome:
        return self.hit(charges)

    async def close(self) -> None:
        """Does nothing: no counts are held elsewhere."""

    def _table(self, rule: Rule) -> OrderedDict[str, int]:
        table = self._tables.get(rule.name)
        if table is None:
            table = self._tables[rule.name] = OrderedDict()
        return table

    def _make_room(self, rule: Rule, table: OrderedDict[str, int], now: int) -> None:
        """Checks a few subjects: the table shrinks again after a rush, and no request waits for a sweep of all."""
        least_busy, least_tat = "", 0
        for _ in range(min(LOOKED_AT_PER_NEW, len(table))):
            subject, tat = next(iter(table.items()))
            if tat <= now:
                del table[subject]
                continue
            table.move_to_end(subject)
            if not least_tat or tat < least_tat:
                least_busy, least_tat = subject, tat
        if len(table) >= self._subjects_max:
            del table[least_busy]
            self.forgotten_busy[rule.name] += 1
