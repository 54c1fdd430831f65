"""Metrics of alerts and their webhooks, and of what the sampler sees: redeliveries, the disk, its own cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.alerts.core.rules import KINDS
from gateway.context import Gateway
from gateway.limits import QUEUES_LABELLED_MAX
from gateway.series.core.columns import NODE_COLUMNS

OTHER = "other"


def families(gateway: Gateway) -> Iterator[Metric]:
    """The first queues by name have series of their own, as in the other families about queues."""
    sampler, watching = gateway.sampler, gateway.watching
    yield _redelivered(gateway, None)
    disk = GaugeMetricFamily("pushq_disk_used_ratio", "How full the disk of the data folder is, from 0 to 1.")
    disk.add_metric((), sampler.node_row[NODE_COLUMNS.index("disk_used_percent")] / 100)
    yield disk
    looks = CounterMetricFamily("pushq_series_seconds", "Time of the core that looking at queues for series has taken.")
    looks.add_metric((), sampler.seconds)
    yield looks
    yield _alerts(gateway, None)
    webhooks = watching.notifier.webhooks
    tries = CounterMetricFamily("pushq_alert_webhooks", "Webhooks of alerts, by how they went.", labels=("outcome",))
    for outcome, count in (("sent", webhooks.sent), ("failed", webhooks.failed), ("dropped", webhooks.dropped)):
        tries.add_metric((outcome,), count)
    yield tries


def of_tenant(gateway: Gateway, tenant: str) -> Iterator[Metric]:
    """What a tenant may know: its own."""
    yield _redelivered(gateway, tenant)
    yield _alerts(gateway, tenant)


def _redelivered(gateway: Gateway, tenant_only: str | None) -> Metric:
    book = gateway.sampler.book
    redelivered: Counter[tuple[str, str]] = Counter()
    names = sorted((name, uid) for name, uid in book.names.items() if tenant_only in (None, name[0]))
    for number, (name, uid) in enumerate(names):
        shown = name if number < QUEUES_LABELLED_MAX else (name[0], OTHER)
        redelivered[shown] += book.watched[uid].pulse.redelivered_total
    text = "Messages that came back for another try, since the process began."
    family = CounterMetricFamily("pushq_messages_redelivered", text, labels=("tenant", "queue"))
    for labels, messages in redelivered.items():
        family.add_metric(labels, messages)
    return family


def _alerts(gateway: Gateway, tenant_only: str | None) -> Metric:
    """A tenant's are those that its administrator sees in the list."""
    alerts = gateway.watching.alerts
    states: Counter[str] = Counter({"pending": 0, "firing": 0})
    for rule_id, found in alerts.open.items():
        rule = alerts.rules.get(rule_id)
        if rule is None or (tenant_only is not None and tenant_only != rule.tenant):
            continue
        if tenant_only is None or KINDS[rule.kind].about != "node":
            states.update(alert.state for alert in found.values())
    family = GaugeMetricFamily("pushq_alerts", "Alerts that are pending or fire.", labels=("state",))
    for state, count in sorted(states.items()):
        family.add_metric((state,), count)
    return family
