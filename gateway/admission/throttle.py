"""Applies rate limits and connection caps to requests, publishes and connections: to which account, by which rules, at
what cost.

The GCRA limiter in `throttling` decides; this module turns a request into charges, and a refusal into an error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Final

from backend_store.client import waited_until
from backend_store.model import MessageTooLarge, PushqError, Quotas, Unavailable
from gateway.admission.rate_rules import rules_of_quotas
from gateway.limits import TENANTS_REMEMBERED_MAX
from push.ports import Publishing
from throttling.census import Census, Full, Kind, Who, network_of
from throttling.decision import Charge, Outcome, tighter
from throttling.limiter import Limiter
from throttling.rules import OPERATIONS, PER_PRINCIPAL, Header, Operation, Rule, headers

Verdict = PushqError | None
"""Why something is refused, or None."""

NO_QUOTAS: Final = Quotas()
_PER_TENANT: Final = ("tenant",)
CONNECTION_RETRY_MS: Final = 5000
"""Retry advice for a refusal for too many connections: one has to close first."""


class Throttle:
    """All limits of one gateway process. Implements `push.ports.Throttle`."""

    def __init__(
        self,
        limiter: Limiter,
        rules: Sequence[Rule],
        census: Census,
        *,
        quotas_of: Callable[[str], Quotas],
        has_queue: Callable[[str, str], bool],
    ) -> None:
        self.limiter = limiter
        self.census = census
        self.rules = tuple(rules)
        self.refused: Counter[str] = Counter()
        """Rule name → refusals."""
        self._quotas_of = quotas_of
        self._has_queue = has_queue
        self._plans = _plans(self.rules)
        self._of_tenant: dict[str, tuple[Quotas, dict[Operation, tuple[Rule, ...]]]] = {}

    # ---------------------------------------------------------------------------------------------------- requests

    def request(self, who: Who, operation: Operation, queue: str | None = None) -> list[Charge]:
        """The charges of a request before its body is known."""
        plan = self._applying(who, operation)
        if len(plan) == 1 and plan[0].is_plain and who.principal:
            return [Charge(plan[0], who.principal, 1)]  # only the default rule applies
        return [
            Charge(rule, subject, 1)
            for rule in plan
            if rule.unit == "requests" and (subject := self._subject(rule, who, queue)) is not None
        ]

    def counts_messages(self, who: Who) -> bool:
        """Whether rules beside the default one apply to publishes, so that `publishing` may have charges."""
        plan = self._applying(who, "publish")
        return len(plan) != 1 or not plan[0].is_plain

    def publishing(self, who: Who, publishes: Sequence[Publishing], *, is_request: bool) -> list[Charge]:
        """The charges of messages that were parsed and not accepted yet. `is_request`: and of the request itself."""
        charges: list[Charge] = []
        for number, (queue, blocks) in enumerate(publishes):
            messages = sum([block.count for block in blocks])
            size = sum([len(block.data) for block in blocks])
            for rule in self._applying(who, "publish"):
                if rule.unit == "requests":
                    cost = 1 if is_request and (number == 0 or "queue" in rule.per) else 0
                else:
                    cost = messages if rule.unit == "messages" else size
                if cost and (subject := self._subject(rule, who, queue)) is not None:
                    charges.append(Charge(rule, subject, cost))
        return charges if len(publishes) == 1 else _merged(charges)

    def publish(
        self, who: Who, publishes: Sequence[Publishing], until: float = inf
    ) -> Verdict | Coroutine[Any, Any, Verdict]:
        """Charges a publish over a socket. Returns None to let it pass, an error that refuses it, or a coroutine to
        await for one of these. `until`: when its caller stops waiting, by the loop's clock."""
        plan = self._applying(who, "publish")
        if len(plan) == 1 and plan[0].is_plain and who.principal:
            # The hot path: one frame, to which only the default rule applies.
            charges = [Charge(plan[0], who.principal, 1)]
        else:
            charges = self.publishing(who, publishes, is_request=True)
            if not charges:
                return None
        outcome = self.limiter.hit(charges)
        return self._later(charges, until) if outcome is None else self.verdict(outcome)

    def publish_together(self, who: Who, queue: str, *, requests: int, messages: int, size: int) -> bool:
        """Charges several publishes to one queue at once, if all of them pass now; else charges nothing and returns
        False."""
        costs = {"requests": requests, "messages": messages, "bytes": size}
        charges = [
            Charge(rule, subject, costs[rule.unit])
            for rule in self._applying(who, "publish")
            if (subject := self._subject(rule, who, queue)) is not None
        ]
        if not charges:
            return True
        outcome = self.limiter.hit(charges)
        return outcome is not None and outcome.allowed

    def operation(self, who: Who, operation: Operation, queue: str | None) -> Verdict | Coroutine[Any, Any, Verdict]:
        """Charges another frame, or a connect. Returns the same as `publish`."""
        charges = self.request(who, operation, queue)
        if not charges:
            return None
        outcome = self.limiter.hit(charges)
        return self._later(charges, inf) if outcome is None else self.verdict(outcome)

    async def _later(self, charges: Sequence[Charge], until: float) -> Verdict:
        try:
            return self.verdict(await within(self.limiter.ask(charges), until))
        except Unavailable as error:
            return error

    def verdict(self, outcome: Outcome) -> Verdict:
        """The error for a refusal, and counts it; None if the limiter allows it."""
        if outcome.allowed:
            return None
        rule = outcome.rule
        self.refused[rule.name] += 1
        whose = f"for {' and '.join(rule.per)} {outcome.subject!r}"
        if outcome.is_store_away:
            detail = (
                f"the limit {rule.name!r} is counted in Redis, which is unavailable; requests are refused until "
                "it returns"
            )
            return Unavailable(detail, retry_after_ms=outcome.retry_after_ms)
        if outcome.retry_after_ns is None:
            return MessageTooLarge(
                f"the request exceeds the limit {rule.name!r} by itself: {rule.words}; send less at once"
            )
        detail = f"the limit {rule.name!r} ({rule.words}) is exceeded {whose}"
        return PushqError(detail, code="rate-limited", retry_after_ms=outcome.retry_after_ms)

    # ------------------------------------------------------------------------------------------------- connections

    def enter(self, kind: Kind, who: Who) -> None:
        """Counts a connection or a subscription in. Raises the problem `too-many-connections`."""
        quotas = self._quotas_of(who.tenant) if who.tenant else NO_QUOTAS
        cap = quotas.connections if kind == "connections" else quotas.subscriptions
        full = self.census.enter(kind, who, tenant_cap=cap)
        if full is not None:
            raise _too_many(full)

    def leave(self, kind: Kind, who: Who) -> None:
        self.census.leave(kind, who)

    @contextmanager
    def holding(self, kind: Kind, who: Who) -> Iterator[None]:
        """Counts it for the duration of the block. Raises the problem `too-many-connections`."""
        self.enter(kind, who)
        try:
            yield
        finally:
            self.leave(kind, who)

    # ------------------------------------------------------------------------------------------------------- rules

    def _applying(self, who: Who, operation: Operation) -> tuple[Rule, ...]:
        plan = self._plans[operation]
        if not who.tenant:
            return plan
        quotas = self._quotas_of(who.tenant)
        known = self._of_tenant.get(who.tenant)
        if known is None or known[0] is not quotas:
            if len(self._of_tenant) >= TENANTS_REMEMBERED_MAX:
                self._of_tenant.clear()
            own = rules_of_quotas(quotas)
            known = self._of_tenant[who.tenant] = quotas, _plans((*self.rules, *own)) if own else self._plans
        return known[1][operation]

    def _subject(self, rule: Rule, who: Who, queue: str | None) -> str | None:
        """The account to charge; None if the rule does not apply to such a request."""
        if rule.per == PER_PRINCIPAL.per:
            return who.principal or f"@{network_of(who.address)}"  # an unauthenticated caller counts by address
        if rule.per == _PER_TENANT:
            return who.tenant or None
        parts: list[str] = []
        for per in rule.per:
            if per == "queue":
                # A queue name that does not exist must not become limiter state.
                known = queue is not None and bool(who.tenant) and self._has_queue(who.tenant, queue)
                part = f"{who.tenant}/{queue}" if known else ""
            else:
                part = network_of(who.address) if per == "address" else getattr(who, per)
            if not part:
                return None
            parts.append(part)
        return "|".join(parts)


class Account:
    """The charges of one HTTP request, and the rate-limit headers of its answer. `dispatch` makes one per request."""

    __slots__ = ("_charges", "_outcome", "_throttle", "queue", "who")

    def __init__(self, throttle: Throttle, who: Who, queue: str | None) -> None:
        self._throttle = throttle
        self.who = who
        self.queue = queue
        self._outcome: Outcome | None = None
        self._charges: list[Charge] = []

    def request(self, operation: Operation) -> Coroutine[Any, Any, Verdict]:
        return self._spend(self._throttle.request(self.who, operation, self.queue))

    async def publish(self, publishes: Sequence[Publishing]) -> None:
        """Charges messages that are about to be accepted. Raises what refuses them; then nothing is charged."""
        if not self._throttle.counts_messages(self.who):
            return
        charges = self._throttle.publishing(self.who, publishes, is_request=False)
        if charges and (verdict := await self._spend(charges)) is not None:
            raise verdict

    async def _spend(self, charges: list[Charge]) -> Verdict:
        self._charges += charges
        limiter = self._throttle.limiter
        outcome = limiter.hit(charges) or await within(limiter.ask(charges), waited_until())
        if not outcome.allowed:
            self._outcome = outcome
            return self._throttle.verdict(outcome)
        self._outcome = outcome if self._outcome is None else tighter(self._outcome, outcome)
        return None

    def headers(self) -> tuple[Header, ...]:
        if self._outcome is None:
            return self._uncharged_headers()
        return headers([charge.rule for charge in self._charges], self._outcome.rule, self._outcome.remaining)

    def _uncharged_headers(self) -> tuple[Header, ...]:
        """The headers of an answer that was refused before anything was charged, from what is known here."""
        charges = [charge._replace(cost=0) for charge in self._throttle.request(self.who, "receive", self.queue)]
        outcome = self._throttle.limiter.hit(charges) if charges else None
        if outcome is None:
            return ()
        return headers([charge.rule for charge in charges], outcome.rule, outcome.remaining)


async def within(asking: Coroutine[Any, Any, Outcome], until: float) -> Outcome:
    """Awaits the limiter's outcome. Raises `Unavailable` after `until`; a question not sent to Redis by then is dropped
    and charges nothing."""
    try:
        async with asyncio.timeout_at(None if until == inf else until):
            return await asking
    except TimeoutError:
        detail = "Redis did not answer in time, so rate limits could not be checked; nothing was done"
        raise Unavailable(detail, retry_after_ms=100) from None


def _plans(rules: Sequence[Rule]) -> dict[Operation, tuple[Rule, ...]]:
    return {each: tuple(rule for rule in rules if each in rule.operations) for each in OPERATIONS}


def _merged(charges: list[Charge]) -> list[Charge]:
    """Merges charges of the same rule and subject, because the limiter decides each on the state before the call."""
    costs: dict[tuple[str, str], Charge] = {}
    for charge in charges:
        key = (charge.rule.name, charge.subject)
        known = costs.get(key)
        costs[key] = charge if known is None else known._replace(cost=known.cost + charge.cost)
    return list(costs.values())


def _too_many(full: Full) -> PushqError:
    detail = f"{full.per} {full.subject!r} has reached the limit of {full.cap} open {full.kind}; close one first"
    return PushqError(detail, code="too-many-connections", retry_after_ms=CONNECTION_RETRY_MS)
