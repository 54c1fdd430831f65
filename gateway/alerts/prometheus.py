"""Exports alert rules as a rules file for Prometheus, over the `/metrics` of gateways and backends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from gateway.alerts.core.rules import KINDS, Rule

RUNBOOK: Final = "https://pushq.example/docs/how-to/alerts"
_EXPRESSIONS: Final[dict[str, str]] = {
    # {Q}: the tenant and the pattern, {T}: the tenant, {R}: the rule, [W]: the window.
    "depth": "pushq_queue_ready_messages{Q}",
    "growth": "deriv(pushq_queue_ready_messages{Q}[W])",
    "oldest_age_ms": "pushq_queue_oldest_age_seconds{Q} * 1000",
    "dead_letters": "pushq_queue_dead_messages{Q}",
    "dead_letter_rate": "sum by (tenant, queue) (rate(pushq_messages_ended_total{Q}[W])) * 60",
    "redelivery_rate": "rate(pushq_messages_redelivered_total{Q}[W]) * 60",
    # Each gateway of the same backends exports the same value of a queue: it counts once.
    "total_depth": "sum by (tenant) (max by (tenant, queue) (pushq_queue_ready_messages{Q}))",
    "total_growth": "sum by (tenant) (max by (tenant, queue) (deriv(pushq_queue_ready_messages{Q}[W])))",
    "total_dead_letters": "sum by (tenant) (max by (tenant, queue) (pushq_queue_dead_messages{Q}))",
    "total_dead_letter_rate": (
        "sum by (tenant) (max by (tenant, queue, reason) (rate(pushq_messages_ended_total{Q}[W]))) * 60"
    ),
    "total_redelivery_rate": (
        "sum by (tenant) (max by (tenant, queue) (rate(pushq_messages_redelivered_total{Q}[W]))) * 60"
    ),
    "consumer_absence": "pushq_queue_ready_messages{Q} and pushq_queue_consumers{Q} == 0",
    "loop_lag_ms": "pushq_loop_lag_seconds * 1000",
    "disk_used_percent": "pushq_disk_used_ratio * 100",
    "memory_used_percent": 'pushq_overload_reading{reading="memory_fraction"} * 100',
    "certificate_days": "(pushq_certificate_expiry_timestamp_seconds - time()) / 86400",
    "key_days": "(pushq_key_expiry_timestamp_seconds{T} - time()) / 86400",
    # The gateway computes the burn rate: a series for each queue and outcome would be too many.
    "slo_availability": "max by (tenant, rule) (pushq_slo_burn_ratio{R})",
    "slo_latency": "max by (tenant, rule) (pushq_slo_burn_ratio{R})",
    # Only the leader of a shard knows the state of the other replicas.
    "out_of_sync": "max by (shard) (pushq_shard_wanted_replicas - pushq_shard_in_sync and pushq_shard_serving == 1)",
    "replica_lag": "max by (shard) (pushq_shard_lag_entries)",
}
_SUBJECTS: Final = {
    "queue": "{{ $labels.queue }}: ",
    "shard": "shard-{{ $labels.shard }}: ",
    "key_days": "key:{{ $labels.key }}: ",
}
"""By kind, or by what the kind is about: the subject in the summary."""
RATE_WINDOW_SECONDS_MIN: Final = 60
"""Prometheus scrapes every 15 s or so: a shorter window has no two samples."""


def rules_file(rules: Iterable[Rule]) -> str:
    """A rules file (YAML). Rules that are off are left out."""
    enabled = sorted((rule for rule in rules if rule.enabled), key=lambda rule: (rule.name, rule.id))
    lines = ["groups:", "  - name: pushq", "    rules:" if enabled else "    rules: []"]
    for rule in enabled:
        lines += _entry(rule, expression_of(rule))
    return "\n".join(lines) + "\n"


def expression_of(rule: Rule) -> str:
    """The rule in PromQL."""
    template = _EXPRESSIONS[rule.kind]
    side = ">" if KINDS[rule.kind].is_above else "<"
    window_s = max(RATE_WINDOW_SECONDS_MIN, rule.window_ms // 1000)
    selector = f"{{tenant={_quoted(rule.tenant)}, queue=~{_quoted(_regex(rule.queue))}}}"
    value = template.replace("{Q}", selector).replace("[W]", f"[{window_s}s]")
    value = value.replace("{T}", f"{{tenant={_quoted(rule.tenant)}}}")
    value = value.replace("{R}", f"{{rule={_quoted(rule.id)}}}")
    if rule.kind == "consumer_absence":
        left, _, right = value.partition(" and ")
        return f"{left} {side} {_number(rule.limit)} and {right}"
    return f"{value} {side} {_number(rule.limit)}"


def _number(limit: float) -> str:
    """With all its digits."""
    return repr(float(limit)).removesuffix(".0")


def _regex(pattern: str) -> str:
    """Converts a pattern of queue names to a PromQL regex, which is anchored at both ends."""
    return ".*".join(re.escape(part).replace("\\-", "-") for part in pattern.split("*"))


def _quoted(text: str) -> str:
    """A string in PromQL, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def _entry(rule: Rule, expression: str) -> list[str]:
    kind = KINDS[rule.kind]
    subject = f"{rule.queue}: " if kind.total_of else _SUBJECTS.get(rule.kind) or _SUBJECTS.get(kind.about, "")
    summary = f"{_plain(rule.name)}: {subject}{rule.kind} is {{{{ $value }}}} {kind.unit}"
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
    """Separates doubled braces in a name: Prometheus would read them as a template."""
    return text.replace("{{", "{ {").replace("}}", "} }")
