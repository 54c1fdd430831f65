"""The stored rows of alerts: rules, silences, receivers, open alerts, webhooks on their way, and the history."""

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
    """Where alerts are sent. The secret is sealed by the master key `master`; a receiver of type log has none."""

    id: str
    tenant: str
    name: str
    type: str
    url: str
    master: str
    sealed: bytes
    created_at_ms: int


class Transition(msgspec.Struct, frozen=True):
    """One line of the history. It keeps the rule's name at that time."""

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
    """When the alert was first seen; None in lines written before 0.9."""


class Telling(msgspec.Struct, frozen=True):
    """A webhook that is on its way, stored with its content until it arrived or was given up."""

    id: str
    receiver: str
    rule: Rule
    alert: Alert
    at_ms: int
    group: Group | None = None
    """The group of alerts that the message is about."""


def telling_id(alert: Alert, receiver: str, group: Group | None = None) -> str:
    """The webhook's id: the same at each gateway that sends this receiver this transition of the alert or group."""
    about = group.key if group is not None else alert.id
    digest = hashlib.sha256(f"{about}\0{alert.state}\0{receiver}".encode()).hexdigest()
    return f"msg_{digest[:24]}"


def budget_place(rule_id: str, hour: int) -> str:
    """The name of an hour's row, which replaces that of an hour no window of an SLO needs any more."""
    return f"{rule_id}/{hour % HOURS_KEPT}"


def put(kind: str, name: str, value: Any) -> Document:
    return Document(kind, name, _encode(value))


def gone(kind: str, name: str) -> Document:
    return Document(kind, name, None)


def row_of(one: Transition) -> str:
    """The name of a line's row; rows sort by it in the order of `seq`."""
    return f"{one.seq:016x}"


def put_transition(one: Transition) -> Document:
    return put(HISTORY, row_of(one), one)


def _load(documents: Documents, kind: str, type_: type[T]) -> list[T]:
    decode = msgspec.msgpack.Decoder(type_).decode
    return [decode(data) for _, data in documents.all(kind)]


class Wanted:
    """Rules, silences and receivers as stored now."""

    def __init__(self, documents: Documents) -> None:
        self.rules = {rule.id: rule for rule in _load(documents, RULES, Rule)}
        self.silences = {silence.id: silence for silence in _load(documents, SILENCES, Silence)}
        self.receivers = {receiver.id: receiver for receiver in _load(documents, RECEIVERS, Receiver)}


decode_transition = msgspec.msgpack.Decoder(Transition).decode


def load_transitions(documents: Documents) -> list[Transition]:
    """The oldest first."""
    return _load(documents, HISTORY, Transition)


def load_open(documents: Documents, rules: Container[str]) -> dict[str, dict[str, Alert]]:
    """Pending and firing alerts of known rules, by rule and subject."""
    found: dict[str, dict[str, Alert]] = {}
    for alert in _load(documents, FIRING, Alert):
        if alert.rule in rules:
            found.setdefault(alert.rule, {})[alert.subject] = alert
    return found


def load_strays(documents: Documents, enabled: Container[str]) -> list[Alert]:
    """Pending and firing alerts of rules that are not evaluated any more."""
    return [alert for alert in _load(documents, FIRING, Alert) if alert.rule not in enabled]


_decode_telling = msgspec.msgpack.Decoder(Telling).decode


def load_tellings(documents: Documents, unwritten: Iterable[Document]) -> list[Telling]:
    """Oldest first: a receiver that learns of an alert's end before its begin would take it for one that goes on."""
    rows: dict[str, bytes | None] = dict(documents.all(TELLING))
    rows.update((one.name, one.data) for one in unwritten)
    found = [_decode_telling(data) for data in rows.values() if data is not None]
    return sorted(found, key=lambda one: one.at_ms)
