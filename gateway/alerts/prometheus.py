"""Alert rules as a file for Prometheus, as far as `/metrics` has what they look at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from gateway.alerts.core.rules import KINDS, Rule

RUNBOOK: Final = "https://pushq.example/docs/how-to/alerts"
_EXPRESSIONS: Final[dict[str, str]] = {
    "depth": "pushq_queue_ready_messages{Q}",
    "growth": "deriv(pushq_queue_ready_messages{Q}[W])",
    "oldest_age_ms": "pushq_queue_oldest_age_seconds{Q} * 1000",
    "dead_letters": "pushq_queue_dead_messages{Q}",
    "dead_letter_rate": "sum by (tenant, queue) (rate(pushq_messages_ended_total{Q}[W])) * 60",
    "redelivery_rate": "rate(pushq_messages_redelivered_total{Q}[W]) * 60",
    "consumer_absence": "pushq_queue_ready_messages{Q} and pushq_queue_consumers{Q} == 0",
    "loop_lag_ms": "pushq_loop_lag_seconds * 1000",
    "disk_used_percent": "pushq_disk_used_ratio * 100",
    "certificate_days": "(pushq_certificate_expiry_timestamp_seconds - time()) / 86400",
}
RATE_WINDOW_SECONDS_MIN: Final = 60
"""Prometheus looks every 15 s or so: a shorter window has no two samples."""


def rules_file(rules: Iterable[Rule]) -> str:
    """A rules file (YAML). Rules that are off are left out; those that Prometheus cannot say stand in a comment."""
    lines = ["groups:", "  - name: pushq", "    rules:"]
    left_out = []
    count = 0
    for rule in sorted(rules, key=lambda rule: (rule.name, rule.id)):
        if not rule.enabled:
            continue
        expression = expression_of(rule)
        if expression is None:
            left_out.append(f"# not for Prometheus: {json.dumps(rule.name)} ({rule.kind})")
            continue
        count += 1
        lines += _entry(rule, expression)
    if not count:
        lines[-1] = "    rules: []"
    return "\n".join([*lines, *left_out]) + "\n"


def expression_of(rule: Rule) -> str | None:
    """The rule in PromQL; None where the metrics do not have it."""
    template = _EXPRESSIONS.get(rule.kind)
    if template is None:
        return None
    side = ">" if KINDS[rule.kind].is_above else "<"
    window_s = max(RATE_WINDOW_SECONDS_MIN, rule.window_ms // 1000)
    selector = f"{{tenant={_quoted(rule.tenant)}, queue=~{_quoted(_regex(rule.queue))}}}"
    value = template.replace("{Q}", selector).replace("[W]", f"[{window_s}s]")
    if rule.kind == "consumer_absence":
        left, _, right = value.partition(" and ")
        return f"{left} {side} {_number(rule.limit)} and {right}"
    return f"{value} {side} {_number(rule.limit)}"


def _number(limit: float) -> str:
    """With every digit that it has."""
    return repr(float(limit)).removesuffix(".0")


def _regex(pattern: str) -> str:
    """A pattern of queue names as PromQL's, which is anchored at both ends."""
    return ".*".join(re.escape(part).replace("\\-", "-") for part in pattern.split("*"))


def _quoted(text: str) -> str:
    """A string in PromQL, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def _entry(rule: Rule, expression: str) -> list[str]:
    subject = "{{ $labels.queue }}: " if KINDS[rule.kind].about == "queue" else ""
    summary = f"{_plain(rule.name)}: {subject}{rule.kind} is {{{{ $value }}}} {KINDS[rule.kind].unit}"
    lines = [
        f"      - alert: {json.dumps(rule.name)}",
        f"        expr: {json.dumps(expression)}",
    ]
    if rule.for_ms:
        lines.append(f"        for: {rule.for_ms}ms")
    if rule.keep_ms:
        lines.append(f"        keep_firing_for: {rule.keep_ms}ms")
    return [
        *lines,
        "        labels:",
        f"          severity: {rule.severity}",
        f"          rule: {json.dumps(rule.id)}",
        "        annotations:",
        f"          summary: {json.dumps(summary)}",
        f"          runbook_url: {RUNBOOK}",
    ]


def _plain(text: str) -> str:
    """A name must not be read as a template."""
    return text.replace("{{", "{ {").replace("}}", "} }")
