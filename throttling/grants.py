"""Grants: what a gateway may allow without asking Redis, taken ahead in small amounts, and refusals that still hold.

A subject that was hit a moment ago is busy, so its next hit takes a little more than it needs. The rest is spent
without a round trip, and goes back once it is idle. So a gateway never allows what Redis did not count first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from throttling.config import GRANT_IDLE_SECONDS, GRANTS_MAX
from throttling.decision import Charge, Outcome
from throttling.gcra import NS_PER_S
from throttling.rules import Rule

_IDLE_NS = int(GRANT_IDLE_SECONDS * NS_PER_S)


class Grant:
    """What this gateway holds of one subject's quota."""

    __slots__ = ("asked_ns", "left", "refused_cost", "refused_until_ns", "remaining", "rule", "subject", "used_ns")

    def __init__(self, rule: Rule, subject: str) -> None:
        self.rule = rule
        self.subject = subject
        self.left = 0
        self.remaining = rule.quota
        """What was left in Redis at the last round trip."""
        self.used_ns = 0
        self.asked_ns = -_IDLE_NS
        self.refused_until_ns = 0
        self.refused_cost = 0

    @property
    def is_low(self) -> bool:
        """Whether it is at least half used up."""
        return self.left * 2 < self.rule.ahead


class Grants:
    """The grants of one gateway. `now_ns` is any steady clock."""

    def __init__(self, *, grants_max: int = GRANTS_MAX) -> None:
        self._grants: OrderedDict[tuple[str, str], Grant] = OrderedDict()
        self._holding: dict[tuple[str, str], Grant] = {}
        self._grants_max = grants_max
        self.is_low = False
        """Whether the last hit left a grant at least half used up."""

    def __len__(self) -> int:
        return len(self._grants)

    @property
    def is_holding(self) -> bool:
        """Whether there are grants that may have to go back."""
        return bool(self._holding)

    def spend(self, charges: Sequence[Charge], now_ns: int) -> Outcome | None:
        """Spends from grants: all of a hit, or nothing. None if Redis has to be asked."""
        found: list[tuple[Grant, int]] = []
        known, is_enough = self._grants, True
        for rule, subject, cost in charges:
            grant = known.get((rule.name, subject))
            if grant is None or grant.left < cost:
                if grant is not None and now_ns < grant.refused_until_ns and cost >= grant.refused_cost:
                    return Outcome(False, rule, subject, grant.remaining, grant.refused_until_ns - now_ns)
                is_enough = False
            else:
                found.append((grant, cost))
        if not is_enough:
            return None
        assert found, "a hit without a charge"
        self.is_low = False
        tightest, least = found[0][0], -1
        for grant, cost in found:
            grant.left -= cost
            grant.used_ns = now_ns
            self.is_low |= grant.is_low
            remaining = grant.remaining + grant.left
            if least < 0 or remaining * tightest.rule.quota < least * grant.rule.quota:
                tightest, least = grant, remaining
        return Outcome(True, tightest.rule, tightest.subject, least)

    def ahead(self, charge: Charge, now_ns: int) -> int:
        """How much to take beyond a hit: nothing for a subject without a recent hit."""
        grant = self._grant(charge)
        is_busy = now_ns - grant.asked_ns < _IDLE_NS
        grant.asked_ns = now_ns
        return max(0, charge.rule.ahead - grant.left) if is_busy else 0

    def low(self, charges: Iterable[Charge]) -> list[Charge]:
        """The charges whose grants are half used up, to be refilled before a request has to wait."""
        out: list[Charge] = []
        for charge in charges:
            grant = self._grants.get((charge.rule.name, charge.subject))
            if grant is not None and grant.is_low:
                out.append(charge)
        return out

    def took(self, charge: Charge, took: int, remaining: int, now_ns: int) -> None:
        """Redis granted `took` for a hit of `charge`; the rest stays here."""
        grant = self._grant(charge)
        grant.left += took - charge.cost
        grant.remaining = remaining
        grant.used_ns = now_ns
        if grant.left:
            self._holding[charge.rule.name, charge.subject] = grant

    def refused(self, charge: Charge, remaining: int, wait_ns: int | None, now_ns: int) -> None:
        """Redis has no room for `charge`: until `wait_ns` is over no request needs to ask again."""
        grant = self._grant(charge)
        grant.remaining = remaining
        grant.refused_until_ns = now_ns + (wait_ns or 0)
        grant.refused_cost = charge.cost

    def idle(self, now_ns: int) -> list[tuple[Rule, str, int]]:
        """Takes out grants that were not used for a while: they have to go back to Redis."""
        out: list[tuple[Rule, str, int]] = []
        for key, grant in list(self._holding.items()):
            if not grant.left:
                del self._holding[key]
            elif now_ns - grant.used_ns >= _IDLE_NS:
                out.append((grant.rule, grant.subject, grant.left))
                grant.left = 0
                del self._holding[key]
        return out

    def clear(self) -> None:
        """Drops everything: Redis went away, and its counts may be lost."""
        self._grants.clear()
        self._holding.clear()

    def _grant(self, charge: Charge) -> Grant:
        key = (charge.rule.name, charge.subject)
        grant = self._grants.get(key)
        if grant is None:
            if len(self._grants) >= self._grants_max:
                # Redis has the counts: a forgotten subject is asked for again, and what was granted is unused for a
                # while.
                forgotten, _ = self._grants.popitem(last=False)
                self._holding.pop(forgotten, None)
            grant = self._grants[key] = Grant(charge.rule, charge.subject)
        return grant
