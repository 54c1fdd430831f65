"""The values that rules evaluate: of queues and their series, the process, keys, certificates, requests and shards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from backend_store.client import Pulse, Store
from backend_store.model import Unavailable
from gateway.alerts.budgets import Budgets
from gateway.alerts.core import shards
from gateway.alerts.core.rules import KINDS, Rule
from gateway.alerts.core.tallies import MINUTES_KEPT, Minutes, Tallies
from gateway.alerts.reports import Reports
from gateway.api.shapes.clusters import ClusterShard
from gateway.clusters.watch import ClusterWatch
from gateway.identity.authorization import compile_pattern
from gateway.listener.proxy_gate import Entrance
from gateway.series.book import PAUSE_SLOTS_MAX, Watched
from gateway.series.core.columns import NODE_COLUMNS, QUEUE_COLUMNS
from gateway.series.core.ring import TIERS
from gateway.series.sampler import Sampler
from gateway.usage.meter import Meter
from gateway.usage.schema import LATENCY_SECONDS_BUCKETS
from push.problems import KINDS as PROBLEMS

Values = Iterable[tuple[str, float | None]]

DAY_MS: Final = 86_400_000
NODE: Final = "node"
OWN: Final = ""
"""This gateway in tallies, where others have names."""
REQUESTS: Final = "publishes"
_STEP_MS: Final = TIERS[0].step_ms
_READY: Final = QUEUE_COLUMNS.index("ready")
_SERVER_ERRORS: Final = 500
_RATES: Final = {
    "dead_letter_rate": (QUEUE_COLUMNS.index("dead_per_s"), Pulse._fields.index("ended_total")),
    "redelivery_rate": (QUEUE_COLUMNS.index("redelivered_per_s"), Pulse._fields.index("redelivered_total")),
}
"""By kind: the column of the series, and the total in the pulse that it is made from."""


class Sources:
    """Reads the current value of each subject of a rule; owned by `Alerts`."""

    def __init__(
        self,
        store: Store,
        sampler: Sampler,
        meter: Meter,
        entrance: Entrance,
        cluster: ClusterWatch | None,
        reports: Reports,
        *,
        memory_bytes_max: int,
    ) -> None:
        self._store = store
        self._sampler = sampler
        self._meter = meter
        self._entrance = entrance
        self._cluster = cluster
        self._memory_bytes_max = memory_bytes_max
        self._reports = reports
        self.budgets = Budgets(store.documents)
        self._counted: Minutes = {}
        """Requests at this gateway in the last minutes."""
        self._tallies = Tallies()

    def values(self, rule: Rule, queues: list[Watched], now_ms: int) -> Values:
        """Subject and value of each; None where the value is not known yet.

        Raises `Unavailable` while the subjects are not known.
        """
        match rule.kind:
            case kind if (of := KINDS[kind].total_of) is not None:
                return [(rule.queue, self._total(rule, of, queues, now_ms))]
            case "depth":
                return [(one.definition.name, one.pulse.ready) for one in queues]
            case "dead_letters":
                return [(one.definition.name, one.pulse.dead) for one in queues]
            case "oldest_age_ms":
                steady_ms = self._store.steady_ms()
                return [
                    (one.definition.name, steady_ms - since if (since := one.pulse.oldest_since_ms) else 0)
                    for one in queues
                ]
            case "consumer_absence":
                return [(one.definition.name, 0 if one.pulse.consumers else one.pulse.ready) for one in queues]
            case "growth":
                is_whole = self._has_seen(rule.window_ms, now_ms)
                return [
                    (one.definition.name, self._growth(one, rule.window_ms, now_ms, is_whole=is_whole))
                    for one in queues
                ]
            case "dead_letter_rate" | "redelivery_rate":
                is_whole = self._has_seen(rule.window_ms, now_ms)
                return [
                    (name, rate if is_whole or rate > rule.limit else None)
                    for name, rate in self._rates(rule.kind, queues, rule.window_ms, now_ms)
                ]
            case "key_days":
                return self._keys(rule.tenant, now_ms)
            case "out_of_sync" | "replica_lag":
                return shards.values(rule.kind, self._shards())
            case "slo_availability" | "slo_latency":
                return [(REQUESTS, self.burn(rule, now_ms))]
            case _:
                return self._nodes(rule.kind, now_ms)

    def forget(self, rule_id: str) -> None:
        self.budgets.forget(rule_id)

    def _has_seen(self, window_ms: int, now_ms: int) -> bool:
        """Whether this process sampled during the whole window."""
        return 0 < self._sampler.book.began_ms <= now_ms - window_ms

    def _total(self, rule: Rule, of: str, queues: list[Watched], now_ms: int) -> float | None:
        """Sum over the rule's queues; None if some of them are not known yet and the rest does not exceed the limit."""
        is_whole = self._are_all_met(rule)
        match of:
            case "depth":
                found: float = sum(one.pulse.ready for one in _working(queues))
            case "dead_letters":
                found = sum(one.pulse.dead for one in queues)
            case "growth":
                has_seen = self._has_seen(rule.window_ms, now_ms)
                grown = [self._growth(one, rule.window_ms, now_ms, is_whole=has_seen) for one in _working(queues)]
                known = [one for one in grown if one is not None]
                return sum(known) if is_whole and len(known) == len(grown) else None  # the others may have shrunk
            case _:
                is_whole = is_whole and self._has_seen(rule.window_ms, now_ms)
                found = sum(rate for _, rate in self._rates(of, queues, rule.window_ms, now_ms))
        return found if is_whole or found > rule.limit else None

    def _are_all_met(self, rule: Rule) -> bool:
        """Whether every queue of a rule has been sampled, which takes a while after a start."""
        met, fits = self._sampler.book.names, compile_pattern(rule.queue).fullmatch
        there = self._store.node.metadata.of_tenant(rule.tenant)
        return not any((one.tenant, one.name) not in met and fits(one.name) for one in there)

    def _rates(self, kind: str, queues: list[Watched], window_ms: int, now_ms: int) -> Iterator[tuple[str, float]]:
        """Messages a minute over the window, including those in no row yet. Messages from before a queue was first
        sampled count as none, so the rate of a young process is a lower bound: enough to raise an alert, and not to end
        one."""
        column, total = _RATES[kind]
        end = now_ms // _STEP_MS + 1
        start = end - window_ms // _STEP_MS
        spans = self._sampler.book.spans(start, end)
        for one in queues:
            seen = max(0, one.pulse[total] - one.kept[total]) / (_STEP_MS / 1000)
            if one.changed_ms >= start * _STEP_MS and (series := self._sampler.book.series_of(one)) is not None:
                values = series.rings[0].column(column, start, end)
                seen += sum(value * span for value, span in zip(values, spans, strict=True) if value == value)
            yield one.definition.name, seen / len(spans) * 60

    def _growth(self, watched: Watched, window_ms: int, now_ms: int, *, is_whole: bool) -> float | None:
        """By how many messages a second the queue has grown over the window, by the rows of its series."""
        if not watched.has_series:
            return 0.0 if is_whole else None
        now = now_ms // _STEP_MS
        then = now - window_ms // _STEP_MS
        if watched.changed_ms < (then - PAUSE_SLOTS_MAX) * _STEP_MS:
            return 0.0
        series = self._sampler.book.series_of(watched)
        assert series is not None
        ring = series.rings[0]
        then = max(then, ring.last - ring.rows + 1 + PAUSE_SLOTS_MAX)
        for slot in range(then, then - PAUSE_SLOTS_MAX - 1, -1):
            before = ring.row(slot)
            if before is not None and before[_READY] == before[_READY]:
                return (watched.pulse.ready - before[_READY]) / ((now - slot) * _STEP_MS / 1000)
        return None

    def _nodes(self, kind: str, now_ms: int) -> Values:
        """The value of this gateway, and the last reported ones of the others."""
        value = self._of_node(kind, now_ms)
        own = [(self._reports.name or NODE, value)] if value is not None else []
        others = [(one.name, one.node[kind]) for _, one in self._reports.others() if kind in one.node]
        return list({**dict(others), **dict(own)}.items())

    def with_unseen(self, rule: Rule, open_: Collection[str], values: Values) -> Values:
        """Adds, without a value, subjects of open alerts that exist and were not sampled yet: they are not over."""
        found = list(values)
        if open_ and KINDS[rule.kind].about == "queue":
            seen = {subject for subject, _ in found}
            queues = self._store.node.metadata.queues
            found += [(name, None) for name in open_ if name not in seen and (rule.tenant, name) in queues]
        return found

    async def report(self, rules: Iterable[Rule], now_ms: int) -> None:
        """Reports to the other gateways what only this one knows, if a rule needs it."""
        kinds = {rule.kind for rule in rules if KINDS[rule.kind].about == "node" or KINDS[rule.kind].is_slo}
        if not kinds:
            return
        node = {
            kind: value
            for kind in kinds
            if KINDS[kind].about == "node" and (value := self._of_node(kind, now_ms)) is not None
        }
        await self._reports.say(node, self._counted)

    async def forget_gone(self) -> None:
        """Removes the reports of gateways that have fallen silent."""
        await self._reports.forget(gateway for gateway, _ in self._reports.others())

    def _of_node(self, kind: str, now_ms: int) -> float | None:
        row = self._sampler.node_row
        match kind:
            case "memory_used_percent":
                return row[NODE_COLUMNS.index("memory_bytes")] / self._memory_bytes_max * 100
            case "certificate_days":
                certificates = self._entrance.certificates
                return (certificates.expires_s * 1000 - now_ms) / DAY_MS if certificates is not None else None
            case _:
                return row[NODE_COLUMNS.index(kind)]

    def _shards(self) -> list[ClusterShard]:
        if self._cluster is None:
            raise Unavailable("this server does not watch a cluster: set cluster.coordinator")
        return self._cluster.state().shards

    def _keys(self, tenant: str, now_ms: int) -> Iterator[tuple[str, float]]:
        for key in list(self._store.node.metadata.keys.values()):
            if key.tenant == tenant and key.expires_at_ms is not None:
                yield f"key:{key.id}", (key.expires_at_ms - now_ms) / DAY_MS

    # ----------------------------------------------------------------------------------------------------- SLOs

    def burn(self, rule: Rule, now_ms: int) -> float | None:
        """How fast an SLO's error budget burns, relative to the threshold; None while too little is known."""
        assert rule.objective is not None
        budget = self.budgets.known(rule)
        return budget.value(now_ms // 60_000, rule.objective) if budget is not None else None

    def count_requests(self, rules: Iterable[Rule], fits: dict[str, set[str]]) -> None:
        """Adds the requests of the current minute and those just before. `fits`: the queues of each rule."""
        slos = list(rules)
        if not slos:
            return
        self._counted = {}
        found_of = [rule.id for rule in slos]
        of_tenant: dict[str, list[Rule]] = {}
        for rule in slos:
            of_tenant.setdefault(rule.tenant, []).append(rule)
        for minute_ms, counts in self._meter.recent():
            found: dict[str, list[int]] = {rule.id: [0, 0] for rule in slos}
            for (tenant, _, queue, operation, _, outcome), one in counts.items():
                if operation != "publish":
                    continue
                for rule in of_tenant.get(tenant, ()):
                    if queue in fits[rule.id]:
                        tally = found[rule.id]
                        tally[0] += one.requests
                        tally[1] += _bad(rule, outcome, one.requests, one.latency)
            self._counted[minute_ms // 60_000] = {rule_id: (total, bad) for rule_id, (total, bad) in found.items()}
        said = [(OWN, self._counted), *((gateway, one.minutes) for gateway, one in self._reports.others())]
        for gateway, minutes in said:
            self._tallies.take(gateway, minutes)
        for minute in {minute for _, minutes in said for minute in minutes}:
            totals = self._tallies.totals(minute, found_of)
            for rule in slos:
                self.budgets.of(rule).put(minute, *totals[rule.id])
        self._tallies.forget_before(min(self._counted) - MINUTES_KEPT)


def _working(queues: Iterable[Watched]) -> Iterator[Watched]:
    """Without streams: their messages are retained for many readers and wait for no consumer."""
    return (one for one in queues if one.definition.config.kind != "stream")


def _bad(rule: Rule, outcome: str, requests: int, latency: list[int]) -> int:
    """Number of requests with an outcome that count as bad for a rule's objective. Errors of the caller do not."""
    if rule.kind == "slo_availability":
        return requests if outcome != "ok" and _is_ours(outcome) else 0
    assert rule.latency_ms is not None
    if outcome != "ok":
        return 0
    bounds = (*LATENCY_SECONDS_BUCKETS, float("inf"))
    return sum(count for bound, count in zip(bounds, latency, strict=True) if bound * 1000 > rule.latency_ms)


def _is_ours(outcome: str) -> bool:
    kind = PROBLEMS.get(outcome)
    return outcome == "internal" or (kind is not None and kind.status >= _SERVER_ERRORS)
