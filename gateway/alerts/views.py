"""Alerts, rules, silences and receivers as the API and the webhooks show them."""

from __future__ import annotations

from typing import Literal

import msgspec

from backend_store.client import timestamp
from backend_store.words import of_unit
from gateway.alerts.alerts import Alerts
from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.rules import KINDS, Rule, Severity
from gateway.alerts.core.silences import Silence, fits_rule, fits_subject, state_of
from gateway.alerts.stored import Receiver, Transition
from gateway.identity.authorization import compile_pattern


class AlertView(msgspec.Struct):
    """`silence_expired`: a silence that was about the alert and is over, which explains why its end is sent."""

    id: str
    rule: str
    rule_name: str
    kind: str
    severity: Severity
    tenant: str
    subject: str
    queue: str | None
    state: Literal["pending", "firing", "resolved"]
    value: float
    limit: float
    unit: str
    since: str
    fired_at: str | None
    resolved_at: str | None
    silenced_by: str | None
    silence_expired: str | None
    detail: str


class HistoryView(msgspec.Struct):
    seq: int
    at: str
    alert: str
    rule: str
    rule_name: str
    kind: str
    severity: str
    subject: str
    queue: str | None
    state: str
    value: float
    limit: float
    silenced_by: str | None
    detail: str


class RuleCounts(msgspec.Struct):
    pending: int
    firing: int


class RuleView(msgspec.Struct):
    id: str
    tenant: str
    name: str
    kind: str
    queue: str
    limit: float
    clear_at: float
    for_ms: int
    keep_ms: int
    window_ms: int
    severity: Severity
    receivers: list[str]
    enabled: bool
    note: str
    objective: float | None
    latency_ms: int | None
    created_at: str
    created_by: str
    updated_at: str
    state: RuleCounts


class SilenceView(msgspec.Struct):
    id: str
    rule: str | None
    queue: str | None
    severity: Severity | None
    author: str
    reason: str
    starts_at: str
    ends_at: str
    state: Literal["scheduled", "active", "expired"]
    mutes: int
    created_at: str


def alert_view(alerts: Alerts, rule: Rule, alert: Alert) -> AlertView:
    active, over = alerts.muting(rule, alert.subject)
    return AlertView(
        alert.id,
        rule.id,
        rule.name,
        rule.kind,
        rule.severity,
        rule.tenant,
        alert.subject,
        alert.subject if KINDS[rule.kind].about == "queue" else None,
        alert.state,
        round(alert.value, 3),
        rule.limit,
        KINDS[rule.kind].unit,
        timestamp(alert.since_ms),
        _time(alert.fired_at_ms),
        _time(alert.resolved_at_ms),
        active.id if active is not None else None,
        over.id if over is not None and active is None else None,
        detail(rule.name, rule.kind, alert.subject, alert.state, alert.value, rule.limit),
    )


def history_view(one: Transition) -> HistoryView:
    return HistoryView(
        one.seq,
        timestamp(one.at_ms),
        one.alert,
        one.rule,
        one.rule_name,
        one.kind,
        one.severity,
        one.subject,
        one.subject if KINDS[one.kind].about == "queue" else None,
        one.state,
        round(one.value, 3),
        one.limit,
        one.silence,
        detail(one.rule_name, one.kind, one.subject, one.state, one.value, one.limit),
    )


def rule_view(alerts: Alerts, rule: Rule) -> RuleView:
    states = [alert.state for alert in alerts.open.get(rule.id, {}).values()]
    fields = {name: getattr(rule, name) for name in RuleView.__struct_fields__ if hasattr(rule, name)}
    fields["receivers"] = list(rule.receivers)
    return RuleView(
        **fields,
        created_at=timestamp(rule.created_at_ms),
        updated_at=timestamp(rule.updated_at_ms),
        state=RuleCounts(states.count("pending"), states.count("firing")),
    )


def silence_view(alerts: Alerts, silence: Silence) -> SilenceView:
    return SilenceView(
        silence.id,
        silence.rule,
        silence.queue,
        silence.severity,
        silence.author,
        silence.reason,
        timestamp(silence.starts_at_ms),
        timestamp(silence.ends_at_ms),
        state_of(silence, alerts.now_ms),
        len(muted(alerts, silence)),
        timestamp(silence.created_at_ms),
    )


def muted(alerts: Alerts, silence: Silence) -> list[tuple[Rule, Alert]]:
    """The open alerts that a silence applies to, whether it has begun or not."""
    found: list[tuple[Rule, Alert]] = []
    known: dict[str, bool] = {}
    for rule in alerts.rules.values():
        if not fits_rule(silence, rule):
            continue
        for alert in alerts.open.get(rule.id, {}).values():
            if (is_fit := known.get(alert.subject)) is None:  # many rules have the same queues
                is_fit = known[alert.subject] = fits_subject(silence, alert.subject, compile_pattern)
            if is_fit:
                found.append((rule, alert))
    return found


class ReceiverView(msgspec.Struct):
    """The counts and the last outcome of its webhooks are those since this process began."""

    id: str
    name: str
    type: Literal["webhook", "log"]
    url: str | None
    created_at: str
    last_at: str | None
    last_status: int | None
    last_error: str | None
    delivered: int
    failed: int


class NewReceiverView(ReceiverView):
    secret: str | None = None
    """Only in the answer that creates the receiver."""


def receiver_fields(receiver: Receiver) -> dict[str, str | None]:
    return {
        "id": receiver.id,
        "name": receiver.name,
        "type": receiver.type,
        "url": receiver.url or None,
        "created_at": timestamp(receiver.created_at_ms),
    }


def detail(name: str, kind: str, subject: str, state: str, value: float, limit: float) -> str:
    """`orders too deep: orders has 1204 messages, the limit is 1000`"""
    known = KINDS[kind]
    side = "above" if known.is_above else "below"
    said = f"{name}: {subject}: {kind} is {round(value, 3):,.15g} {of_unit(known.unit, value)}"
    return f"{said}, {side} {limit:,.15g}" if state != "resolved" else f"{said}; resolved"


def _time(at_ms: int | None) -> str | None:
    return timestamp(at_ms) if at_ms is not None else None
