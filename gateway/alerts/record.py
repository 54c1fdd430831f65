"""What rules have found: alerts that are open, those that are over since a moment ago, and the history.

Who tells of alerts writes it down; other gateways of the same backends read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import structlog

from backend_store.client import Document, Documents, Duty
from backend_store.model import Conflict, PushqError
from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.rules import Rule
from gateway.alerts.core.shared import Line, kept, missed
from gateway.alerts.core.silences import Silence
from gateway.alerts.limits import HISTORY_MS_MAX, HISTORY_PER_TENANT_MAX, RESOLVED_KEPT_MS, RESOLVED_PER_TENANT_MAX
from gateway.alerts.stored import (
    FIRING,
    HISTORY,
    TELLING,
    Lines,
    Telling,
    Transition,
    gone,
    load_open,
    load_tellings,
    put,
    put_transition,
    telling_id,
)

log = structlog.get_logger("pushq.alerts")


class Record:
    """See the file's first sentence."""

    def __init__(self, documents: Documents, rules: Mapping[str, Rule], now_ms: int) -> None:
        self.open: dict[str, dict[str, Alert]] = load_open(documents, rules)
        """By rule and subject: those that are pending or fire."""
        self.resolved: dict[str, deque[Alert]] = {}
        """By tenant, of the last hour, the oldest first."""
        self.history: dict[str, deque[Transition]] = {}
        self._documents = documents
        self._lines = Lines(documents)
        self._seq = 0
        """Of the newest line."""
        self._kept_seq = 0
        """Of the newest line that was written down here, or shown: what another gateway wrote behind it is new."""
        self._read_at = documents.changes_elsewhere(FIRING, HISTORY)
        self._unwritten: dict[tuple[str, str], Document] = {}
        """What is so and not on the disk yet, by place."""
        self.has_told = False
        """Whether webhooks have arrived since somebody asked."""
        self._telling: set[str] = set()
        """Ids of webhooks that are on their way and written down."""
        self._is_ahead = False
        """Whether the history may have lines here that are never written down."""
        lines = self._read_lines(anew=True)
        self._kept_seq = self._seq
        late = {one.alert for one in lines if one.state == "resolved" and one.at_ms > now_ms - RESOLVED_KEPT_MS}
        self._end(rules, missed((_line(one) for one in lines if one.alert in late), {}))

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, rules: Mapping[str, Rule], *, anew: bool = False) -> list[Alert]:
        """Takes over what another gateway has written: the alerts that became something else, as they are now.

        `anew`: what was not written down here is not so.
        """
        at = self._documents.changes_elsewhere(FIRING, HISTORY)
        if at == self._read_at and not anew:
            return []
        self._read_at = at
        if anew:
            self._unwritten.clear()
        before = {alert.id: alert for alerts in self.open.values() for alert in alerts.values()}
        seq, self.open = self._kept_seq, load_open(self._documents, rules)
        lines = [one for one in self._read_lines(anew=anew) if one.seq > seq]
        self._kept_seq = self._seq
        now = [alert for alerts in self.open.values() for alert in alerts.values()]
        changed = [alert for alert in now if alert.state == "pending" and alert.id not in before]
        ended = missed(map(_line, lines), before)
        self._end(rules, ended)
        return changed + ended

    def read_lines(self) -> None:
        """Another gateway may have removed a tenant, and its lines."""
        at = self._documents.changes_elsewhere(FIRING, HISTORY)
        if at != self._read_at and not self._unwritten:
            self._read_at = at
            self._read_lines(anew=False)

    def _read_lines(self, *, anew: bool) -> list[Transition]:
        """Those that came since the last time; `anew`: all."""
        if anew or self._is_ahead:
            self._is_ahead = False
            come, gone = self._lines.read(), list[Transition]()
            self.history = {}
        else:
            come, gone = self._lines.changes()
        changed: dict[str, dict[int, Transition]] = {}
        for one in (*gone, *come):
            if one.tenant not in changed:
                changed[one.tenant] = {line.seq: line for line in self.history.get(one.tenant, ())}
        for one in gone:
            changed[one.tenant].pop(one.seq, None)
        for one in come:
            changed[one.tenant][one.seq] = one
        for tenant, lines in changed.items():
            self.history[tenant] = deque(lines[seq] for seq in sorted(lines))
            if not lines:
                del self.history[tenant]
        self._seq = max((lines[-1].seq for lines in self.history.values()), default=self._seq)
        return come

    def _end(self, rules: Mapping[str, Rule], alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            if alert.state == "resolved" and (rule := rules.get(alert.rule)) is not None:
                self._over(rule.tenant).append(alert)

    def _over(self, tenant: str) -> deque[Alert]:
        return self.resolved.setdefault(tenant, deque(maxlen=RESOLVED_PER_TENANT_MAX))

    # --------------------------------------------------------------------------------------------------- writing

    def see(self, rule: Rule, alerts: dict[str, Alert]) -> None:
        """The rule's open alerts after a look."""
        is_shared = self._documents.are_shared
        changed = kept(self.open.get(rule.id, {}), alerts, with_pending=is_shared)
        self.open[rule.id] = alerts
        self._put(put(FIRING, f"{rule.id}/{alert.subject}", alert) for alert in changed.put)
        self._put(gone(FIRING, f"{rule.id}/{subject}") for subject in changed.gone)

    def note(self, rule: Rule, alert: Alert, now_ms: int, silence: Silence | None) -> None:
        """A line of history, and the lines that make room for it."""
        if alert.state == "resolved":
            self._over(rule.tenant).append(alert)
        self._seq += 1
        line = Transition(
            self._seq, now_ms, rule.tenant, alert.id, rule.id, rule.name, rule.kind, rule.severity, alert.subject,
            alert.state, alert.value, rule.limit, silence.id if silence is not None else None,
        )  # fmt: skip
        lines = self.history.setdefault(rule.tenant, deque())
        lines.append(line)
        self._put([put_transition(line)])
        while len(lines) > HISTORY_PER_TENANT_MAX or lines[0].at_ms < now_ms - HISTORY_MS_MAX:
            self._put([gone(HISTORY, f"{lines.popleft().seq:016x}")])

    def tell(self, rule: Rule, alert: Alert, receiver: str, now_ms: int) -> None:
        """A webhook is to be sent: whoever tells next goes on with it."""
        one = Telling(telling_id(alert, receiver), receiver, rule, alert, now_ms)
        self._put([put(TELLING, one.id, one)])
        self._telling.add(one.id)

    def tellings(self) -> list[Telling]:
        """Webhooks that were on their way when another process or gateway ended."""
        found = load_tellings(self._documents)
        self._telling = {one.id for one in found}
        return found

    def told(self, message_id: str) -> None:
        """It arrived, or was given up."""
        if message_id in self._telling:
            self._telling.discard(message_id)
            self.has_told = True
            self._put([gone(TELLING, message_id)])

    def _put(self, documents: Iterable[Document]) -> None:
        for one in documents:
            self._unwritten[one.kind, one.name] = one

    async def write(self, duty: Duty | None) -> None:
        """Writes down what changed. Raises `Conflict` when the duty is another gateway's: nothing of it is so then.

        A full disk or a cluster without a leader is what somebody may have to be told about: then it goes on in memory,
        and is written down later.
        """
        documents, self._unwritten, seq = self._unwritten, {}, self._seq
        if not documents:
            return
        try:
            await self._documents.write(documents.values(), duty=duty)
            self._kept_seq = seq
        except Conflict:
            raise
        except PushqError as error:
            self._unwritten = documents | self._unwritten
            log.warning("alerts could not be written down yet", rows=len(documents), error=error.detail)

    def forget_unwritten(self) -> None:
        """It is on another gateway to write."""
        self._is_ahead |= any(kind == HISTORY for kind, _ in self._unwritten)
        self._unwritten.clear()

    # -------------------------------------------------------------------------------------------------- forgetting

    def end(self, rule: Rule) -> list[Document]:
        """Nobody looks any more, so its alerts go without being told as resolved. The rows that go."""
        return [self._gone(FIRING, f"{rule.id}/{subject}") for subject in self.open.pop(rule.id, {})]

    def forget_rules(self, rules: Iterable[str]) -> None:
        """Another gateway removed them, and may not have known all of their alerts."""
        for rule_id in rules:
            self._put(gone(FIRING, f"{rule_id}/{subject}") for subject in self.open.pop(rule_id, {}))

    def forget_tenant(self, tenant: str) -> list[Document]:
        """The rows that go."""
        self.resolved.pop(tenant, None)
        return [self._gone(HISTORY, f"{line.seq:016x}") for line in self.history.pop(tenant, ())]

    def forget_resolved(self, now_ms: int) -> None:
        for tenant, alerts in list(self.resolved.items()):
            while alerts and (alerts[0].resolved_at_ms or 0) <= now_ms - RESOLVED_KEPT_MS:
                alerts.popleft()
            if not alerts:
                del self.resolved[tenant]

    def _gone(self, kind: str, name: str) -> Document:
        self._unwritten.pop((kind, name), None)
        return gone(kind, name)


def _line(one: Transition) -> Line:
    return Line(one.alert, one.subject, one.rule, one.state, one.value, one.at_ms)
