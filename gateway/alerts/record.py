"""The results of rules: open alerts, those resolved within the last hour, and the history of transitions.

The gateway that has the duty to notify writes them; other gateways of the same backends read them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Iterable, Mapping
from typing import Final

import structlog

from backend_store.client import Document, Documents, Duty
from backend_store.model import Conflict, NotDurable, Overloaded, PushqError, StorageFull, Unavailable
from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.groups import Group
from gateway.alerts.core.rules import KINDS, Rule
from gateway.alerts.core.shared import Line, kept, missed
from gateway.alerts.core.silences import Silence
from gateway.alerts.core.slo import HOURS_KEPT
from gateway.alerts.history import History
from gateway.alerts.limits import (
    HISTORY_UNWRITTEN_ROWS_MAX,
    RESOLVED_KEPT_MS,
    RESOLVED_PER_TENANT_MAX,
    WRITE_SECONDS_MAX,
)
from gateway.alerts.stored import (
    BUDGETS,
    FIRING,
    HISTORY,
    TELLING,
    Telling,
    Transition,
    budget_place,
    gone,
    load_open,
    load_strays,
    load_tellings,
    put,
    telling_id,
)
from gateway.alerts.unwritten import Unwritten

log = structlog.get_logger("pushq.alerts")

_KINDS: Final = (TELLING, FIRING, HISTORY, BUDGETS)
"""In the order in which they are written. A gateway that goes on after a part of them has the webhook, and finds the
alert that it is about anew, under the same id."""
_NOT_BEGUN: Final = (Unavailable, Overloaded, NotDurable, StorageFull)


class Record:
    """Alerts and their history, in memory and in `Documents`; owned by `Alerts`."""

    def __init__(self, documents: Documents, rules: Mapping[str, Rule], now_ms: int) -> None:
        self.open: dict[str, dict[str, Alert]] = load_open(documents, rules)
        """Pending and firing alerts by rule and subject."""
        self.resolved: dict[str, deque[Alert]] = {}
        """By tenant, of the last hour, the oldest first."""
        self.history = History(documents)
        self._documents = documents
        self._kept_seq = self.history.seq
        """The newest line of the history that was written or shown here: later lines are another gateway's news."""
        self._read_at = documents.changes_elsewhere(FIRING, HISTORY)
        self.unwritten = Unwritten(
            _KINDS,
            documents.get,
            rows_max={HISTORY: HISTORY_UNWRITTEN_ROWS_MAX},
        )
        self.has_told = False
        """Whether webhooks arrived, or were given up, since the caller reset this."""
        self._telling: set[str] = set()
        """Ids of webhooks that are on their way and stored."""
        lines = self.history.all()
        late = {one.alert for one in lines if one.state == "resolved" and one.at_ms > now_ms - RESOLVED_KEPT_MS}
        self._end(rules, missed((_line(one) for one in lines if one.alert in late), {}))

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, rules: Mapping[str, Rule], *, anew: bool = False) -> list[Alert]:
        """Takes over what another gateway has written. Returns the alerts whose state changed, as they are now.

        `anew`: discards what this gateway has not written yet.
        """
        at = self._documents.changes_elsewhere(FIRING, HISTORY)
        if at == self._read_at and not anew:
            return []
        self._read_at = at
        if anew:
            self.unwritten.clear()
        before = {alert.id: alert for alerts in self.open.values() for alert in alerts.values()}
        self.open = load_open(self._documents, rules)
        lines = self.history.read_all() if anew else self.history.read_changes()
        lines = [one for one in lines if one.seq > self._kept_seq]
        self._kept_seq = self.history.seq
        now = [alert for alerts in self.open.values() for alert in alerts.values()]
        changed = [alert for alert in now if alert.state == "pending" and alert.id not in before]
        ended = missed(map(_line, lines), before)
        self._end(rules, ended)
        return changed + ended

    def read_lines(self) -> None:
        """Takes over lines that another gateway removed together with a tenant."""
        self.history.read_changes()

    def _end(self, rules: Mapping[str, Rule], alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            if alert.state == "resolved" and (rule := rules.get(alert.rule)) is not None:
                self._over(rule.tenant).append(alert)

    def _over(self, tenant: str) -> deque[Alert]:
        return self.resolved.setdefault(tenant, deque(maxlen=RESOLVED_PER_TENANT_MAX))

    # --------------------------------------------------------------------------------------------------- writing

    def see(self, rule: Rule, alerts: dict[str, Alert]) -> None:
        """Sets the rule's open alerts after an evaluation."""
        is_shared = self._documents.are_shared
        changed = kept(self.open.get(rule.id, {}), alerts, with_pending=is_shared)
        self.open[rule.id] = alerts
        self.unwritten.put(put(FIRING, f"{rule.id}/{alert.subject}", alert) for alert in changed.put)
        self.unwritten.put(gone(FIRING, f"{rule.id}/{subject}") for subject in changed.gone)

    def note(self, rule: Rule, alert: Alert, now_ms: int, silence: Silence | None) -> None:
        """Adds a transition to the history, and removes the lines that make room for it."""
        if alert.state == "resolved":
            self._over(rule.tenant).append(alert)
        line = Transition(
            self.history.seq + 1, now_ms, rule.tenant, alert.id, rule.id, rule.name, rule.kind, rule.severity,
            alert.subject, alert.state, alert.value, rule.limit, silence.id if silence is not None else None,
            alert.since_ms,
        )  # fmt: skip
        self.unwritten.put(self.history.note(line, now_ms))

    def tell(self, rule: Rule, alert: Alert, receiver: str, now_ms: int, group: Group | None = None) -> None:
        """Queues a webhook for storing: the next holder of the duty goes on with it."""
        one = Telling(telling_id(alert, receiver, group), receiver, rule, alert, now_ms, group)
        self.unwritten.put([put(TELLING, one.id, one)])
        self._telling.add(one.id)

    def tellings(self) -> list[Telling]:
        """Webhooks that were on their way when another process or gateway ended."""
        found = load_tellings(self._documents, self.unwritten.of_kind(TELLING))
        self._telling = {one.id for one in found}
        return found

    def told(self, message_id: str) -> None:
        """Removes a webhook that arrived or was given up."""
        if message_id in self._telling:
            self._telling.discard(message_id)
            self.has_told = True
            self.unwritten.put([gone(TELLING, message_id)])

    def count(self, rows: Iterable[Document]) -> None:
        """Queues rows of what SLOs have counted."""
        self.unwritten.put(rows)

    async def write(self, duty: Duty | None) -> None:
        """Stores what changed. Raises `Conflict` when another gateway has the duty: then nothing of it holds.

        Other failures (a full disk, a cluster without a leader) may be what an alert has to report: then the changes
        stay in memory and are stored later.
        """
        self._written(self.unwritten.landed())  # a write without an answer in time may have been committed
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX if self._documents.are_far else None):
                while piece := self.unwritten.piece():
                    await self._documents.write(piece, duty=duty)
                    self._written(piece)
        except Conflict:
            raise
        except (PushqError, TimeoutError) as error:
            self.unwritten.failed(is_unsure=not isinstance(error, _NOT_BEGUN))
            why = error.detail if isinstance(error, PushqError) else f"no response within {WRITE_SECONDS_MAX:g} s"
            waiting = self.unwritten
            log.warning(
                "alerts could not be stored yet",
                rows=len(waiting),
                merged=waiting.merged,
                dropped=waiting.dropped,
                error=why,
            )

    def _written(self, piece: list[Document]) -> None:
        if not piece:
            return
        self.unwritten.written(piece)
        lines = [int(one.name, 16) for one in piece if one.kind == HISTORY and one.data is not None]
        self._kept_seq = max((self._kept_seq, *lines))

    def forget_unwritten(self) -> None:
        """Discards what waits: another gateway has to write it."""
        self.unwritten.clear()

    # -------------------------------------------------------------------------------------------------- forgetting

    def ending(self, rule: Rule) -> list[Document]:
        """The rows to remove when a rule is no longer evaluated: its alerts end without a "resolved" notification. The
        alerts stay until these rows are written and passed to `ended`."""
        return [gone(FIRING, f"{rule.id}/{subject}") for subject in self.open.get(rule.id, {})]

    def ending_with(self, rule: Rule) -> list[Document]:
        """The rows to remove with a rule: its alerts, and what an SLO had counted."""
        places = [budget_place(rule.id, hour) for hour in range(HOURS_KEPT)] if KINDS[rule.kind].is_slo else []
        return self.ending(rule) + [gone(BUDGETS, place) for place in places]

    def ended(self, rows: Iterable[Document]) -> None:
        """Drops the alerts of rows that were removed."""
        for one in rows:
            self.unwritten.forget(one.kind, one.name)
            if one.kind == FIRING:
                self.open.pop(one.name.partition("/")[0], None)

    def forget_rules(self, rules: Iterable[str]) -> None:
        """Removes alerts of rules that another gateway deleted or disabled: it may not have known all of them."""
        for rule_id in rules:
            self.unwritten.put(gone(FIRING, f"{rule_id}/{subject}") for subject in self.open.pop(rule_id, {}))

    def forget_strays(self, enabled: Container[str]) -> None:
        """Removes stored alerts of rules that were deleted or disabled: the gateway that did so did not know of these
        alerts, and the one that found them did not remove them."""
        for alert in load_strays(self._documents, enabled):
            self.open.pop(alert.rule, None)
            self.unwritten.put([gone(FIRING, f"{alert.rule}/{alert.subject}")])

    def forget_tenant(self, tenant: str) -> list[Document]:
        """Returns the rows to remove."""
        self.resolved.pop(tenant, None)
        rows = [gone(HISTORY, name) for name in self.history.forget_tenant(tenant)]
        self.ended(rows)
        return rows

    def forget_resolved(self, now_ms: int) -> None:
        for tenant, alerts in list(self.resolved.items()):
            while alerts and (alerts[0].resolved_at_ms or 0) <= now_ms - RESOLVED_KEPT_MS:
                alerts.popleft()
            if not alerts:
                del self.resolved[tenant]


def _line(one: Transition) -> Line:
    return Line(one.alert, one.subject, one.rule, one.state, one.value, one.at_ms, one.since_ms)
