"""Series of queues beyond their numbers: what ended without an ack, how far the groups of streams are behind, and how
many partitions there are of queues that have several.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from backend_store.client import list_groups
from backend_store.model import ClusterAway, QueueNotFound
from gateway.context import Gateway
from gateway.limits import GROUPS_LABELLED_MAX, QUEUES_LABELLED_MAX
from push.looking_up import found

OTHER: Final = "other"
QUEUES_PER_TURN: Final = 50

ENDED_LABELS: Final = ("tenant", "queue", "reason")
LAG_LABELS: Final = ("tenant", "queue", "group")
PARTITION_LABELS: Final = ("tenant", "queue", "state")
MOVING_LABELS: Final = ("tenant", "queue")


async def families(gateway: Gateway, tenant_only: str | None = None) -> list[Metric]:
    """Of all tenants, or of one. The first queues and groups by name have series of their own, the others share one a
    tenant.
    """
    ended: Counter[tuple[str, str, str]] = Counter()
    lags: Counter[tuple[str, str, str]] = Counter()
    partitions: Counter[tuple[str, str, str]] = Counter()
    moving: Counter[tuple[str, str]] = Counter()
    names = sorted(one for one in gateway.store.metadata.queues if tenant_only in (None, one[0]))
    for number, (tenant, name) in enumerate(names):
        if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
            await asyncio.sleep(0)  # thousands of queues must not hold everybody's messages up
        shown = name if number < QUEUES_LABELLED_MAX else OTHER
        try:
            queue = gateway.store.here(tenant, name)
            for reason, messages in (await found(partial(getattr, queue, "ended"))).items():
                ended[tenant, shown, reason] += messages
            for each in await found(partial(getattr, queue, "layout")) or ():
                partitions[tenant, shown, each.state] += 1
                moving[tenant, shown] += each.slots_arriving
            for group in await found(partial(list_groups, queue)):
                own = len(lags) < GROUPS_LABELLED_MAX
                lags[(tenant, name, group.name) if own else (tenant, OTHER, OTHER)] += sum(
                    part.lag for part in group.lag
                )
        except (QueueNotFound, ClusterAway):
            continue  # it was deleted while others were read, or nobody can say
    return [*_ended(ended), *_lags(lags), *_partitions(partitions), *_moving(moving)]


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


def _partitions(partitions: Counter[tuple[str, str, str]]) -> Iterator[Metric]:
    text = "Partitions of queues that have, had or may get several; draining ones take nothing new."
    family = GaugeMetricFamily("pushq_queue_partitions", text, labels=PARTITION_LABELS)
    for labels, count in partitions.items():
        family.add_metric(labels, count)
    yield family


def _moving(moving: Counter[tuple[str, str]]) -> Iterator[Metric]:
    text = "Slots of such a queue, of 256, that are on their way to another partition: their publishes wait."
    family = GaugeMetricFamily("pushq_queue_slots_moving", text, labels=MOVING_LABELS)
    for labels, slots in moving.items():
        family.add_metric(labels, slots)
    yield family
