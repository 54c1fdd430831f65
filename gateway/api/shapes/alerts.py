"""Bodies and pages of the alert API: rules, silences and receivers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from gateway.alerts.core.rules import KINDS, About, Severity
from gateway.alerts.limits import (
    FOR_MS_MAX,
    RECEIVERS_PER_RULE_MAX,
    SILENCE_MS_MAX,
    TEXT_CHARS_MAX,
    URL_CHARS_MAX,
    WINDOW_MS_MAX,
    WINDOW_MS_MIN,
)
from gateway.alerts.views import AlertView, HistoryView, ReceiverView, RuleView, SilenceView
from gateway.limits import NAME_CHARS_MAX

PATTERN_RULE = r"^[A-Za-z0-9_.*-]{1,128}$"
PATTERN_URL = r"^https?://[!-~]+$"


def _schema(**constraints: Any) -> msgspec.Meta:
    """Constraints for the document only; handlers check them and give better errors."""
    return msgspec.Meta(extra_json_schema=constraints)


Pattern = Annotated[str, _schema(pattern=PATTERN_RULE)]


class RuleBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, _schema(minLength=1, maxLength=NAME_CHARS_MAX)]
    kind: Annotated[str, _schema(enum=sorted(KINDS))]
    queue: Pattern = "*"
    """The queues it is about; `*` stands for any run of characters."""
    limit: float | None = None
    clear_at: float | None = None
    """The value at which an alert resolves; by default a tenth on the good side of the limit."""
    for_ms: Annotated[int, _schema(minimum=0, maximum=FOR_MS_MAX)] = 0
    keep_ms: Annotated[int, _schema(minimum=0, maximum=FOR_MS_MAX)] = 0
    window_ms: Annotated[int, _schema(minimum=WINDOW_MS_MIN, maximum=WINDOW_MS_MAX)] = 60_000
    severity: Severity = "warning"
    receivers: Annotated[list[str], _schema(maxItems=RECEIVERS_PER_RULE_MAX)] = []
    enabled: bool = True
    note: Annotated[str, _schema(maxLength=TEXT_CHARS_MAX)] = ""
    objective: Annotated[float | None, _schema(exclusiveMinimum=0, exclusiveMaximum=100)] = None
    """Of an SLO: the percentage of publishes that must be good."""
    latency_ms: Annotated[int | None, _schema(enum=[1, 5, 25, 100, 500, 2500, 10000, None])] = None
    """Of `slo_latency`: the longest duration of a good publish."""


class SilenceBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Annotated[str, _schema(minLength=1, maxLength=TEXT_CHARS_MAX)]
    rule: str | None = None
    queue: Pattern | None = None
    severity: Severity | None = None
    author: Annotated[str | None, _schema(maxLength=NAME_CHARS_MAX)] = None
    """By default the key's name."""
    starts_at: Annotated[str, _schema(format="date-time")] | None = None
    ends_at: Annotated[str, _schema(format="date-time")] | None = None
    duration_ms: Annotated[int | None, _schema(minimum=1, maximum=SILENCE_MS_MAX)] = None


class ReceiverBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, _schema(minLength=1, maxLength=NAME_CHARS_MAX)]
    type: Literal["webhook", "log"] = "webhook"
    url: Annotated[str | None, _schema(maxLength=URL_CHARS_MAX, pattern=PATTERN_URL)] = None
    """Of a webhook: the URL to post to."""


class AlertPage(msgspec.Struct):
    items: list[AlertView]
    next: str | None


class HistoryPage(msgspec.Struct):
    items: list[HistoryView]
    next: str | None


class RulePage(msgspec.Struct):
    items: list[RuleView]
    next: str | None


class SilencePage(msgspec.Struct):
    items: list[SilenceView]
    next: str | None


class SilencePreview(msgspec.Struct):
    mutes: int
    items: list[AlertView]


class ReceiverPage(msgspec.Struct):
    items: list[ReceiverView]
    next: str | None


class KindView(msgspec.Struct):
    kind: str
    about: About
    unit: str
    direction: Literal["above", "below"]
    meaning: str
    fields: list[str]
    needs: str | None


class KindPage(msgspec.Struct):
    items: list[KindView]
    next: str | None = None


class PreviewItem(msgspec.Struct):
    subject: str
    value: float | None
    would: Literal["firing", "quiet", "unknown"]


class RulePreview(msgspec.Struct):
    """What a rule would find. `items` has those beyond the limit first, at most a hundred."""

    matched: int
    firing: int
    items: list[PreviewItem]


class TestView(msgspec.Struct):
    receiver: str
    ok: bool
    status: int | None
    error: str | None
    ms: int


class TestPage(msgspec.Struct):
    items: list[TestView]
