"""Silences: which alerts they mute, and when."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from gateway.alerts.core.rules import Rule, Severity


class Silence(msgspec.Struct, frozen=True):
    """Mutes alerts that match every field that is set; `queue` is a pattern."""

    id: str
    tenant: str
    rule: str | None
    queue: str | None
    severity: Severity | None
    author: str
    reason: str
    starts_at_ms: int
    ends_at_ms: int
    created_at_ms: int


Compile = Callable[[str], re.Pattern[str]]


def state_of(silence: Silence, now_ms: int) -> Literal["scheduled", "active", "expired"]:
    if now_ms < silence.starts_at_ms:
        return "scheduled"
    return "active" if now_ms < silence.ends_at_ms else "expired"


def fits_rule(silence: Silence, rule: Rule) -> bool:
    """Whether the silence can apply to alerts of the rule, at any time."""
    return (
        silence.tenant == rule.tenant and silence.rule in (None, rule.id) and silence.severity in (None, rule.severity)
    )


def fits_subject(silence: Silence, subject: str, compile_pattern: Compile) -> bool:
    return silence.queue is None or compile_pattern(silence.queue).fullmatch(subject) is not None


def fits(silence: Silence, rule: Rule, subject: str, compile_pattern: Compile) -> bool:
    """Whether the silence applies to such an alert, at any time."""
    return fits_rule(silence, rule) and fits_subject(silence, subject, compile_pattern)


def muting(
    silences: Iterable[Silence], rule: Rule, subject: str, now_ms: int, compile_pattern: Compile
) -> tuple[Silence | None, Silence | None]:
    """A silence that mutes the alert now, and the fitting one that expired last."""
    active: Silence | None = None
    over: Silence | None = None
    for silence in silences:
        if not fits(silence, rule, subject, compile_pattern):
            continue
        match state_of(silence, now_ms):
            case "active":
                active = silence
            case "expired" if over is None or silence.ends_at_ms > over.ends_at_ms:
                over = silence
    return active, over
