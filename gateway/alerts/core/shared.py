"""Alerts that several gateways share: which changes are stored, and what a reader of the history has missed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gateway.alerts.core.evaluate import Alert


class Kept(NamedTuple):
    """The changes to the rows of one rule after an evaluation."""

    put: list[Alert]
    gone: list[str]
    """Subjects."""


def kept(before: Mapping[str, Alert], after: Mapping[str, Alert], *, with_pending: bool) -> Kept:
    """The rows to write. A change of value alone is not stored: values change at each evaluation. `with_pending`:
    stores pending alerts and `quiet_since_ms`, so that another gateway goes on waiting where this one stopped; a
    gateway on its own begins to wait anew."""
    if not with_pending:
        before = {subject: _plain(alert) for subject, alert in before.items() if alert.state == "firing"}
        after = {subject: _plain(alert) for subject, alert in after.items() if alert.state == "firing"}
    put = [alert for subject, alert in after.items() if _differ(before.get(subject), alert)]
    return Kept(put, [subject for subject in before if subject not in after])


def _plain(alert: Alert) -> Alert:
    return msgspec.structs.replace(alert, quiet_since_ms=None)


def _differ(before: Alert | None, alert: Alert) -> bool:
    return before is None or (before.id, before.state, before.quiet_since_ms) != (
        alert.id,
        alert.state,
        alert.quiet_since_ms,
    )


class Line(NamedTuple):
    """The fields of a line of the history that a reader needs."""

    alert: str
    subject: str
    rule: str
    state: str
    value: float
    at_ms: int
    since_ms: int | None
    """None in lines of older versions, whose ids of alerts end with it."""


def missed(lines: Iterable[Line], known: Mapping[str, Alert]) -> list[Alert]:
    """The alerts of new lines of the history, one for each line, as they became. `known`: those open before, by id."""
    found: list[Alert] = []
    last = dict(known)
    for line in lines:
        alert = last.get(line.alert) or _begun(line)
        match line.state:
            case "firing":
                alert = msgspec.structs.replace(alert, state="firing", value=line.value, fired_at_ms=line.at_ms)
            case _:
                alert = msgspec.structs.replace(alert, state="resolved", value=line.value, resolved_at_ms=line.at_ms)
        last[line.alert] = alert
        found.append(alert)
    return found


def _begun(line: Line) -> Alert:
    since_ms = line.since_ms
    if since_ms is None:
        since = line.alert.rpartition(".")[2]
        since_ms = int(since) if since.isdigit() else line.at_ms
    return Alert(line.alert, line.rule, line.subject, "firing", line.value, since_ms)
