"""Turns values into alerts: pending, firing, resolved; at most one alert for a rule and a subject.

An alert fires when its value was past the limit for the whole of `for_ms`. It is over when the value was at `clear_at`
or better for the whole of `keep_ms`. In between nothing changes, so a value that oscillates around the limit fires
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from gateway.alerts.core.rules import KINDS, Rule
from gateway.alerts.limits import ALERTS_PER_RULE_MAX, ID_SPAN_MS

State = Literal["pending", "firing", "resolved"]


class Alert(msgspec.Struct, frozen=True):
    """The state of a rule for one subject. `quiet_since_ms`: since when the value of a firing alert has been clear."""

    id: str
    rule: str
    subject: str
    state: State
    value: float
    since_ms: int
    fired_at_ms: int | None = None
    resolved_at_ms: int | None = None
    quiet_since_ms: int | None = None


class Observed(NamedTuple):
    """The result of an evaluation: the rule's alerts by subject, and those whose state changed."""

    alerts: dict[str, Alert]
    changed: list[Alert]
    omitted: int
    """Subjects past the limit beyond the most alerts of a rule."""


def observe(
    rule: Rule,
    alerts: Mapping[str, Alert],
    values: Iterable[tuple[str, float | None]],
    now_ms: int,
    last_about: Callable[[str], int],
) -> Observed:
    """`values` has every existing subject; None means that its value is unknown, and then nothing changes for it.

    A subject that is missing is gone, and its alert is over. `last_about`: see `alert_id`.
    """
    is_above = KINDS[rule.kind].is_above
    limit = rule.limit
    after: dict[str, Alert] = {}
    changed: list[Alert] = []
    omitted = met = 0
    for subject, value in values:
        known = alerts.get(subject)
        if known is None:
            if value is None or not (value > limit if is_above else value < limit):
                continue
            if len(after) + len(alerts) - met >= ALERTS_PER_RULE_MAX:
                omitted += 1
                continue
            alert = _begun(rule, subject, value, now_ms, last_about(subject))
            changed.append(alert)
            after[subject] = alert
            continue
        met += 1
        alert_now = known if value is None else _judged(rule, known, value, now_ms, is_above=is_above)
        if alert_now is not None and alert_now.state != "resolved":
            after[subject] = alert_now
        if alert_now is not None and alert_now.state != known.state:
            changed.append(alert_now)
    if met < len(alerts):
        told = {alert.id for alert in changed}
        for subject, known in alerts.items():
            if subject not in after and known.state == "firing" and known.id not in told:
                changed.append(_resolved(known, known.value, now_ms))
    return Observed(after, changed, omitted)


def moved(alerts: Mapping[str, Alert], by_ms: int) -> dict[str, Alert]:
    """Shifts waiting times after the clock was set by `by_ms`: what has lasted a minute has still lasted a minute."""
    return {
        subject: msgspec.structs.replace(
            alert,
            since_ms=alert.since_ms + by_ms if alert.state == "pending" else alert.since_ms,
            quiet_since_ms=None if alert.quiet_since_ms is None else alert.quiet_since_ms + by_ms,
        )
        for subject, alert in alerts.items()
    }


def alert_id(rule: Rule, subject: str, now_ms: int, last_about: int) -> str:
    """The id of an alert: a new one each time a rule fires about a subject, and the same at every gateway that finds
    it.

    `last_about`: the number of the last line of the history about the subject, which all gateways know and which grows
    each time. A time would differ between gateways. But an alert without a stored line leaves the number as it was, and
    a much later alert must not have its id: so the span of time in which it was found is part of the id.
    """
    return f"{rule.id}.{subject}.{now_ms // ID_SPAN_MS}.{last_about}"


def _begun(rule: Rule, subject: str, value: float, now_ms: int, last_about: int) -> Alert:
    is_pending = rule.for_ms > 0
    return Alert(
        alert_id(rule, subject, now_ms, last_about),
        rule.id,
        subject,
        "pending" if is_pending else "firing",
        value,
        now_ms,
        None if is_pending else now_ms,
    )


def _judged(rule: Rule, alert: Alert, value: float, now_ms: int, *, is_above: bool) -> Alert | None:
    """The alert with a new value; None for a pending one whose value is no longer past the limit."""
    is_past = value > rule.limit if is_above else value < rule.limit
    if alert.state == "pending":
        if not is_past:
            return None
        since_ms = min(alert.since_ms, now_ms)  # the clock of the gateway that wrote it may be ahead
        if now_ms - since_ms >= rule.for_ms:
            return msgspec.structs.replace(alert, state="firing", value=value, since_ms=since_ms, fired_at_ms=now_ms)
        return msgspec.structs.replace(alert, value=value, since_ms=since_ms)
    is_clear = value <= rule.clear_at if is_above else value >= rule.clear_at
    if not is_clear:
        if alert.value == value and alert.quiet_since_ms is None:
            return alert
        return msgspec.structs.replace(alert, value=value, quiet_since_ms=None)
    quiet_since_ms = min(alert.quiet_since_ms, now_ms) if alert.quiet_since_ms is not None else now_ms
    if now_ms - quiet_since_ms >= rule.keep_ms:
        return _resolved(alert, value, now_ms)
    return msgspec.structs.replace(alert, value=value, quiet_since_ms=quiet_since_ms)


def _resolved(alert: Alert, value: float, now_ms: int) -> Alert:
    return msgspec.structs.replace(alert, state="resolved", value=value, resolved_at_ms=now_ms)
