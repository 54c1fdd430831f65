"""What alerts keep on the disk: rules, silences, receivers, alerts that fire, webhooks on their way, the history."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable
from typing import Any, Final, TypeVar

import msgspec

from backend_store.client import Document, Documents
from gateway.alerts.core.evaluate import Alert, State
from gateway.alerts.core.groups import Group
from gateway.alerts.core.rules import Rule
from gateway.alerts.core.silences import Silence
from gateway.alerts.core.slo import HOURS_KEPT

RULES: Final = "alert-rule"
SILENCES: Final = "alert-silence"
RECEIVERS: Final = "alert-receiver"
FIRING: Final = "alert"
HISTORY: Final = "alert-history"
TELLING: Final = "alert-telling"
REPORTS: Final = "alert-report"
BUDGETS: Final = "alert-budget"

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


class Receiver(msgspec.Struct, frozen=True):
    """Who is told. The secret is sealed by the master key named beside it; a log has none."""

    id: str
    tenant: str
    name: str
    type: str
    url: str
    master: str
    sealed: bytes
    created_at_ms: int


class Transition(msgspec.Struct, frozen=True):
    """One line of the history; what the rule was called then stays."""

    seq: int
    at_ms: int
    tenant: str
    alert: str
    rule: str
    rule_name: str
    kind: str
    severity: str
    subject: str
    state: State | str
    value: float
    limit: float
    silence: str | None = None
    since_ms: int | None = None
    """When the alert was seen first; lines of before 0.9 do not say it."""


class Telling(msgspec.Struct, frozen=True):
    """A webhook that is on its way: written down with what it tells, and gone when it arrived or was given up."""

    id: str
    receiver: str
    rule: Rule
    alert: Alert
    at_ms: int
    group: Group | None = None
    """Of alerts that are told together with this one."""


def telling_id(alert: Alert, receiver: str, group: Group | None = None) -> str:
    """The webhook's id: whoever tells this receiver of this change of this alert, or group, has the same one."""
    about = group.key if group is not None else alert.id
    digest = hashlib.sha256(f"{about}\0{alert.state}\0{receiver}".encode()).hexdigest()
    return f"msg_{digest[:24]}"


def budget_place(rule_id: str, hour: int) -> str:
    """The name of a row; an hour takes the place of one that no window of an SLO has any more."""
    return f"{rule_id}/{hour % HOURS_KEPT}"


def put(kind: str, name: str, value: Any) -> Document:
    return Document(kind, name, _encode(value))


def gone(kind: str, name: str) -> Document:
    return Document(kind, name, None)


def row_of(one: Transition) -> str:
    """The name of a line's row: they sort by it."""
    return f"{one.seq:016x}"


def put_transition(one: Transition) -> Document:
    return put(HISTORY, row_of(one), one)


def _load(documents: Documents, kind: str, type_: type[T]) -> list[T]:
    decode = msgspec.msgpack.Decoder(type_).decode
    return [decode(data) for _, data in documents.all(kind)]


class Wanted:
    """What people have made, as of now."""

    def __init__(self, documents: Documents) -> None:
        self.rules = {rule.id: rule for rule in _load(documents, RULES, Rule)}
        self.silences = {silence.id: silence for silence in _load(documents, SILENCES, Silence)}
        self.receivers = {receiver.id: receiver for receiver in _load(documents, RECEIVERS, Receiver)}


decode_transition = msgspec.msgpack.Decoder(Transition).decode


def load_transitions(documents: Documents) -> list[Transition]:
    """The oldest first."""
    return _load(documents, HISTORY, Transition)


def load_open(documents: Documents, rules: Container[str]) -> dict[str, dict[str, Alert]]:
    """Alerts that are not over, by rule and subject, of rules that are there."""
    found: dict[str, dict[str, Alert]] = {}
    for alert in _load(documents, FIRING, Alert):
        if alert.rule in rules:
            found.setdefault(alert.rule, {})[alert.subject] = alert
    return found


def load_strays(documents: Documents, enabled: Container[str]) -> list[Alert]:
    """Alerts that are not over, of rules that nobody asks any more."""
    return [alert for alert in _load(documents, FIRING, Alert) if alert.rule not in enabled]


_decode_telling = msgspec.msgpack.Decoder(Telling).decode


def load_tellings(documents: Documents, unwritten: Iterable[Document]) -> list[Telling]:
    """The oldest first: who hears of an alert's end before its begin takes it for one that goes on."""
    rows: dict[str, bytes | None] = dict(documents.all(TELLING))
    rows.update((one.name, one.data) for one in unwritten)
    found = [_decode_telling(data) for data in rows.values() if data is not None]
    return sorted(found, key=lambda one: one.at_ms)
