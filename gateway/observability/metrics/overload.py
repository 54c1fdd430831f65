"""Metrics of the process's load: the level, the readings that determine it, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.admission.overload import Overload
from gateway.context import Gateway
from gateway.listener.head_limits import REASONS
from throttling.admission import Level


def families(gateway: Gateway, overload: Overload) -> Iterator[Metric]:
    intake = gateway.hub.intake
    level = GaugeMetricFamily(
        "pushq_overload_level", "Shedding level: 0 nothing is refused, 1 new sockets, 2 also replays, 3 also publishes."
    )
    level.add_metric((), int(intake.level))
    yield level
    reading = GaugeMetricFamily(
        "pushq_overload_reading", "Inputs of the shedding level, as a fraction of 1 or in seconds.", labels=("reading",)
    )
    reading.add_metric(("loop_lag_p99_seconds",), overload.readings.lag_ms / 1000)
    reading.add_metric(("memory_fraction",), overload.readings.memory_fraction)
    reading.add_metric(("publish_wait_seconds",), overload.waited_ms / 1000)
    reading.add_metric(("disk_fraction",), overload.disk_fraction)
    yield reading
    changes = CounterMetricFamily("pushq_overload_changes", "How often each level was entered.", labels=("level",))
    for each in Level:
        changes.add_metric((each.name.lower(),), overload.changes[each])
    yield changes
    refused = CounterMetricFamily(
        "pushq_overload_refused", "Operations refused under load, by type and reason.", labels=("stage", "reason")
    )
    refused.add_metric(("socket", "pace"), intake.refused["socket", "pace"])
    for key, count in intake.refused.items():
        if key != ("socket", "pace"):
            refused.add_metric(key, count)
    yield refused
    unconfirmed = GaugeMetricFamily("pushq_unconfirmed_bytes", "Publishes accepted but not confirmed yet.")
    unconfirmed.add_metric((), intake.room.used)
    yield unconfirmed
    slow = CounterMetricFamily(
        "pushq_slowest_closed", "WebSockets closed because they did not read while memory was short."
    )
    slow.add_metric((), overload.closed_slow)
    yield slow
    cut = CounterMetricFamily("pushq_slow_readers_cut", "HTTP connections closed because their response was not read.")
    cut.add_metric((), intake.readers_cut)
    yield cut
    bodies = CounterMetricFamily(
        "pushq_answered_bodies_cut", "HTTP connections closed because a body continued after it was answered."
    )
    bodies.add_metric((), intake.bodies_cut)
    yield bodies
    heads = CounterMetricFamily(
        "pushq_heads_refused",
        "HTTP connections closed because of a malformed request head, by reason.",
        labels=("reason",),
    )
    for reason in REASONS:
        heads.add_metric((reason,), intake.heads_refused[reason])
    yield heads
