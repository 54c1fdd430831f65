"""Groups alerts of one rule that begin or end at one evaluation: a few are sent one by one, many in one message."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.rules import KINDS, Rule
from gateway.alerts.limits import GROUP_ALERTS_MIN, GROUP_SUBJECTS_MAX


class Group(msgspec.Struct, frozen=True):
    """The content of a message about many alerts. `key`: the same for the same alerts. `subjects`: worst first."""

    key: str
    alerts: int
    subjects: tuple[str, ...]


class Note(NamedTuple):
    """One message: about an alert, or about a group, with its worst alert."""

    rule: Rule
    alert: Alert
    group: Group | None


def notes(changed: Iterable[tuple[Rule, Alert]]) -> Iterator[Note]:
    found: dict[tuple[str, str], list[tuple[Rule, Alert]]] = {}
    for rule, alert in changed:
        found.setdefault((rule.id, alert.state), []).append((rule, alert))
    for pairs in found.values():
        if len(pairs) < GROUP_ALERTS_MIN:
            yield from (Note(rule, alert, None) for rule, alert in pairs)
        else:
            rule = pairs[0][0]
            yield _grouped(rule, [alert for _, alert in pairs])


def _grouped(rule: Rule, alerts: list[Alert]) -> Note:
    sign = -1 if KINDS[rule.kind].is_above else 1
    worst = sorted(alerts, key=lambda alert: (sign * alert.value, alert.subject))
    key = hashlib.sha256("\0".join(sorted(alert.id for alert in alerts)).encode()).hexdigest()
    subjects = tuple(alert.subject for alert in worst[:GROUP_SUBJECTS_MAX])
    return Note(rule, worst[0], Group(key, len(alerts), subjects))
