"""What alerts keep on the disk: rules, silences, receivers, alerts that fire, and the history, a row each."""

from __future__ import annotations

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


def put(kind: str, name: str, value: Any) -> Document:
    return Document(kind, name, _encode(value))


def gone(kind: str, name: str) -> Document:
    return Document(kind, name, None)


def put_transition(one: Transition) -> Document:
    return put(HISTORY, f"{one.seq:016x}", one)


def _load(documents: Documents, kind: str, type_: type[T]) -> list[T]:
    decode = msgspec.msgpack.Decoder(type_).decode
    return [decode(data) for _, data in documents.all(kind)]


class Loaded:
    """Everything there is, as of the start."""

    def __init__(self, documents: Documents) -> None:
        self.rules = {rule.id: rule for rule in _load(documents, RULES, Rule)}
        self.silences = {silence.id: silence for silence in _load(documents, SILENCES, Silence)}
        self.receivers = {receiver.id: receiver for receiver in _load(documents, RECEIVERS, Receiver)}
        self.firing = _load(documents, FIRING, Alert)
        self.history = _load(documents, HISTORY, Transition)
