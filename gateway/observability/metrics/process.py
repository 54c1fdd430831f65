"""Metrics that every role has: event-loop lag, the running version, commit durations."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric

from backend_store.client import COMMIT_SECONDS_BUCKETS
from gateway.admission.loop_lag import LoopLag
from gateway.version import VERSION


class Commits(Protocol):
    """A histogram of commit durations, with the bounds of `COMMIT_SECONDS_BUCKETS`."""

    @property
    def buckets(self) -> Sequence[int]: ...
    @property
    def sum(self) -> float: ...


def families(lag: LoopLag) -> Iterator[Metric]:
    gauge = GaugeMetricFamily("pushq_loop_lag_seconds", "Maximum event loop lag in the last 10 s.")
    gauge.add_metric((), lag.worst_seconds)
    yield gauge
    info: Any = InfoMetricFamily("pushq_build", "The running version.")
    info.add_metric((), {"version": VERSION, "python": platform.python_version()})
    yield info


def commits(seconds: Commits) -> Metric:
    commit = HistogramMetricFamily("pushq_commit_seconds", "Time from handing over a batch until its fsync completes.")
    bounds = [str(bound) for bound in COMMIT_SECONDS_BUCKETS] + ["+Inf"]
    commit.add_metric((), list(zip(bounds, accumulate(seconds.buckets), strict=True)), seconds.sum)
    return commit
