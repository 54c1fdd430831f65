"""Series of queues beyond their numbers: what ended without an ack, and how far the groups of streams are behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from backend_store.client import list_groups
from backend_store.model import QueueNotFound
from gateway.context import Gateway
from gateway.limits import GROUPS_LABELLED_MAX, QUEUES_LABELLED_MAX

OTHER: Final = "other"
QUEUES_PER_TURN: Final = 50

ENDED_LABELS: Final = ("tenant", "queue", "reason")
LAG_LABELS: Final = ("tenant", "queue", "group")


async def families(gateway: Gateway) -> list[Metric]:
    """The first queues and groups by name have series of their own, the others share one a tenant."""
    ended: Counter[tuple[str, str, str]] = Counter()
    lags: Counter[tuple[str, str, str]] = Counter()
    for number, (tenant, name) in enumerate(sorted(gateway.store.metadata.queues)):
        if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
            await asyncio.sleep(0)  # thousands of queues must not hold everybody's messages up
        try:
            queue = gateway.store.queue(tenant, name)
        except QueueNotFound:
            continue  # deleted while others were read
        for reason, messages in queue.ended.items():
            ended[tenant, name if number < QUEUES_LABELLED_MAX else OTHER, reason] += messages
        for group in list_groups(queue):
            own = len(lags) < GROUPS_LABELLED_MAX
            lags[(tenant, name, group.name) if own else (tenant, OTHER, OTHER)] += sum(part.lag for part in group.lag)
    return [*_ended(ended), *_lags(lags)]


def _ended(ended: Counter[tuple[str, str, str]]) -> Iterator[Metric]:
    text = "Messages that ended without an ack: dead letters, expired, dropped by retention or for want of room."
    family = CounterMetricFamily("pushq_messages_ended", text, labels=ENDED_LABELS)
    for labels, messages in ended.items():
        family.add_metric(labels, messages)
    yield family


def _lags(lags: Counter[tuple[str, str, str]]) -> Iterator[Metric]:
    text = "Messages that a consumer group of a stream has before it."
    family = GaugeMetricFamily("pushq_group_lag_messages", text, labels=LAG_LABELS)
    for labels, messages in lags.items():
        family.add_metric(labels, messages)
    yield family
