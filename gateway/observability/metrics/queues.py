"""Metrics of queues beyond their stats: messages that ended without an ack, lag of consumer groups, and partitions of
queues that have several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.observability.queue_numbers import Collected

ENDED_LABELS: Final = ("tenant", "queue", "reason")
LAG_LABELS: Final = ("tenant", "queue", "group")
PARTITION_LABELS: Final = ("tenant", "queue", "state")
MOVING_LABELS: Final = ("tenant", "queue")


def families(numbers: Collected) -> list[Metric]:
    return [*_ended(numbers.ended), *_lags(numbers.lags), *_partitions(numbers.partitions), *_moving(numbers.moving)]


def _ended(ended: Counter[tuple[str, str, str]]) -> Iterator[Metric]:
    text = "Messages that ended without an ack: dead-lettered, expired, or dropped by retention or overflow."
    family = CounterMetricFamily("pushq_messages_ended", text, labels=ENDED_LABELS)
    for labels, messages in ended.items():
        family.add_metric(labels, messages)
    yield family


def _lags(lags: Counter[tuple[str, str, str]]) -> Iterator[Metric]:
    text = "Messages a stream's consumer group has yet to process."
    family = GaugeMetricFamily("pushq_group_lag_messages", text, labels=LAG_LABELS)
    for labels, messages in lags.items():
        family.add_metric(labels, messages)
    yield family


def _partitions(partitions: Counter[tuple[str, str, str]]) -> Iterator[Metric]:
    text = "Partitions of queues that have, had or may get several; draining ones accept no new messages."
    family = GaugeMetricFamily("pushq_queue_partitions", text, labels=PARTITION_LABELS)
    for labels, count in partitions.items():
        family.add_metric(labels, count)
    yield family


def _moving(moving: Counter[tuple[str, str]]) -> Iterator[Metric]:
    text = "Slots of such a queue, of 256, that are moving to another partition: their publishes wait."
    family = GaugeMetricFamily("pushq_queue_slots_moving", text, labels=MOVING_LABELS)
    for labels, slots in moving.items():
        family.add_metric(labels, slots)
    yield family
