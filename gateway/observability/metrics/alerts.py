"""Metrics of alerts and their webhooks, and of what the sampler measures: redeliveries, the disk, its own cost."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.alerts.core.rules import KINDS
from gateway.context import Gateway
from gateway.limits import KEYS_LABELLED_MAX, QUEUES_LABELLED_MAX
from gateway.series.core.columns import NODE_COLUMNS

OTHER = "other"


def families(gateway: Gateway) -> Iterator[Metric]:
    """The families of `/metrics`. The first queues of each tenant have series of their own, as in the other families
    about queues."""
    sampler, watching = gateway.sampler, gateway.watching
    yield _redelivered(gateway, None)
    disk = GaugeMetricFamily("pushq_disk_used_ratio", "How full the data folder's disk is, from 0 to 1.")
    disk.add_metric((), sampler.node_row[NODE_COLUMNS.index("disk_used_percent")] / 100)
    yield disk
    looks = CounterMetricFamily("pushq_series_seconds", "CPU time spent sampling queues for series.")
    looks.add_metric((), sampler.seconds)
    yield looks
    yield _alerts(gateway, None)
    yield _burning(gateway, None)
    yield _key_ends(gateway, None)
    teller = GaugeMetricFamily("pushq_alert_teller", "1 on the gateway that evaluates alert rules and sends alerts.")
    teller.add_metric((), int(watching.alerts.teller.is_ours))
    yield teller
    webhooks = watching.notifier.webhooks
    tries = CounterMetricFamily("pushq_alert_webhooks", "Alert webhooks by outcome.", labels=("outcome",))
    for outcome, count in (("sent", webhooks.sent), ("failed", webhooks.failed), ("dropped", webhooks.dropped)):
        tries.add_metric((outcome,), count)
    yield tries
    unwritten = watching.alerts.record.unwritten
    waiting = GaugeMetricFamily("pushq_alert_rows_waiting", "Alert records not stored yet.")
    waiting.add_metric((), len(unwritten))
    yield waiting
    text = "Alert records never stored: replaced by newer ones, or history lines dropped."
    never = CounterMetricFamily("pushq_alert_rows_unwritten", text, labels=("why",))
    for why, count in (("merged", unwritten.merged), ("dropped", unwritten.dropped)):
        never.add_metric((why,), count)
    yield never


def of_tenant(gateway: Gateway, tenant: str) -> Iterator[Metric]:
    """The families with a tenant's own series."""
    yield _redelivered(gateway, tenant)
    yield _alerts(gateway, tenant)
    yield _burning(gateway, tenant)
    yield _key_ends(gateway, tenant)


def _redelivered(gateway: Gateway, tenant_only: str | None) -> Metric:
    book = gateway.sampler.book
    order, most = book.order, QUEUES_LABELLED_MAX
    shown = order.first(most) if tenant_only is None else order.of(tenant_only, most)
    redelivered = Counter({name: book.watched[book.names[name]].pulse.redelivered_total for name in shown})
    own, counts = Counter[str](), Counter(tenant for tenant, _ in shown)
    for (tenant, _), messages in redelivered.items():
        own[tenant] += messages
    for tenant in order.tenants if tenant_only is None else [tenant_only]:
        if order.count(tenant) > counts[tenant]:
            redelivered[tenant, OTHER] += book.redelivered[tenant] - own[tenant]
    text = "Messages redelivered since the process started."
    family = CounterMetricFamily("pushq_messages_redelivered", text, labels=("tenant", "queue"))
    for labels, messages in redelivered.items():
        family.add_metric(labels, messages)
    return family


def _alerts(gateway: Gateway, tenant_only: str | None) -> Metric:
    """Counts of alerts by state. A tenant's are those that its administrator sees in the list."""
    alerts = gateway.watching.alerts
    states: Counter[str] = Counter({"pending": 0, "firing": 0})
    for rule_id, found in alerts.open.items():
        rule = alerts.rules.get(rule_id)
        if rule is None or (tenant_only is not None and tenant_only != rule.tenant):
            continue
        if tenant_only is None or not KINDS[rule.kind].is_for_operators:
            states.update(alert.state for alert in found.values())
    family = GaugeMetricFamily("pushq_alerts", "Alerts that are pending or firing.", labels=("state",))
    for state, count in sorted(states.items()):
        family.add_metric((state,), count)
    return family


def _burning(gateway: Gateway, tenant_only: str | None) -> Metric:
    """The burn rate of each SLO rule."""
    alerts = gateway.watching.alerts
    text = "How fast an SLO's error budget burns, relative to the threshold: above 1 its rule fires."
    family = GaugeMetricFamily("pushq_slo_burn_ratio", text, labels=("tenant", "rule"))
    for rule in alerts.rules.values():
        if rule.enabled and KINDS[rule.kind].is_slo and tenant_only in (None, rule.tenant):
            burn = alerts.sources.burn(rule, alerts.now_ms)
            if burn is not None:
                family.add_metric((rule.tenant, rule.id), burn)
    return family


def _key_ends(gateway: Gateway, tenant_only: str | None) -> Metric:
    """The expiry of the keys that expire first."""
    keys = gateway.store.node.metadata.keys.values()
    ends = [
        (key.expires_at_ms, key.tenant, key.id)
        for key in list(keys)
        if key.expires_at_ms is not None and tenant_only in (None, key.tenant)
    ]
    text = "When an API key expires: the ones that expire first."
    family = GaugeMetricFamily("pushq_key_expiry_timestamp_seconds", text, labels=("tenant", "key"))
    for at_ms, tenant, key_id in heapq.nsmallest(KEYS_LABELLED_MAX, ends):
        family.add_metric((tenant, key_id), at_ms / 1000)
    return family
