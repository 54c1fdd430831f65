"""What alerts keep on the disk: rules, silences, receivers, alerts that fire, webhooks on their way, the history."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from typing import Any, Final, TypeVar

import msgspec

from backend_store.client import Document, Documents
from gateway.alerts.core.evaluate import Alert, State
from gateway.alerts.core.rules import Rule
from gateway.alerts.core.silences import Silence

RULES: Final = "alert-rule"
SILENCES: Final = "alert-silence"
RECEIVERS: Final = "alert-receiver"
FIRING: Final = "alert"
HISTORY: Final = "alert-history"
TELLING: Final = "alert-telling"
REPORTS: Final = "alert-report"

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


class Telling(msgspec.Struct, frozen=True):
    """A webhook that is on its way: written down with what it tells, and gone when it arrived or was given up."""

    id: str
    receiver: str
    rule: Rule
    alert: Alert
    at_ms: int


def telling_id(alert: Alert, receiver: str) -> str:
    """The webhook's id: whoever tells this receiver of this change of this alert has the same one."""
    digest = hashlib.sha256(f"{alert.id}\0{alert.state}\0{receiver}".encode()).hexdigest()
    return f"msg_{digest[:24]}"


def put(kind: str, name: str, value: Any) -> Document:
    return Document(kind, name, _encode(value))


def gone(kind: str, name: str) -> Document:
    return Document(kind, name, None)


def put_transition(one: Transition) -> Document:
    return put(HISTORY, f"{one.seq:016x}", one)


def _load(documents: Documents, kind: str, type_: type[T]) -> list[T]:
    decode = msgspec.msgpack.Decoder(type_).decode
    return [decode(data) for _, data in documents.all(kind)]


class Wanted:
    """What people have made, as of now."""

    def __init__(self, documents: Documents) -> None:
        self.rules = {rule.id: rule for rule in _load(documents, RULES, Rule)}
        self.silences = {silence.id: silence for silence in _load(documents, SILENCES, Silence)}
        self.receivers = {receiver.id: receiver for receiver in _load(documents, RECEIVERS, Receiver)}


class Lines:
    """The history as it is stored. It is read whole once, and from then on what has become another: it may have 2,000
    lines of each tenant."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._known: dict[str, Transition] = {}

    def read(self) -> list[Transition]:
        """All, the oldest first."""
        self._documents.take_changes(HISTORY)
        rows = self._documents.all(HISTORY)
        self._known = {name: self._known.get(name) or _decode_line(data) for name, data in rows}
        return list(self._known.values())

    def changes(self) -> tuple[list[Transition], list[Transition]]:
        """What has come and what has gone since it was read, the oldest first."""
        come, gone = [], []
        for name, data in sorted(self._documents.take_changes(HISTORY).items()):
            known = self._known.pop(name, None)
            if known is not None:
                gone.append(known)
            if data is not None:
                self._known[name] = _decode_line(data)
                come.append(self._known[name])
        return come, gone


_decode_line = msgspec.msgpack.Decoder(Transition).decode


def load_open(documents: Documents, rules: Container[str]) -> dict[str, dict[str, Alert]]:
    """Alerts that are not over, by rule and subject, of rules that are there."""
    found: dict[str, dict[str, Alert]] = {}
    for alert in _load(documents, FIRING, Alert):
        if alert.rule in rules:
            found.setdefault(alert.rule, {})[alert.subject] = alert
    return found


def load_tellings(documents: Documents) -> list[Telling]:
    """The oldest first: who hears of an alert's end before its begin takes it for one that goes on."""
    return sorted(_load(documents, TELLING, Telling), key=lambda one: one.at_ms)
