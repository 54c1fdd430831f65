"""Stands in for a node in another process: what a gateway's metrics, health and overload control read of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend_store.remote.definitions.definitions import RemoteDefinitions
from backend_store.service.reports import Report
from backend_store.storage.writer import COMMIT_SECONDS_BUCKETS


class _Seconds:
    """Commit durations as a backend reports them; zero until then, as no commit is made here."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(COMMIT_SECONDS_BUCKETS) + 1)
        self.count = 0
        self.sum = 0.0
        self.last = 0.0


class _Writer:
    def __init__(self) -> None:
        self.commit_seconds = _Seconds()


class _Committer:
    def __init__(self) -> None:
        self.waited_ms = 0.0
        self.on_waited: Callable[[float], None] = lambda waited_ms: None


class _Used:
    def __init__(self) -> None:
        self.used_fraction = 0.0


class _Space:
    publish_stop_fraction = None
    """A setting of the backends, which they do not report."""

    def __init__(self) -> None:
        self.space = _Used()


class FarNode:
    """See the file's first sentence. A backend watches its own disk and commits; only the storage process on this
    machine reports them here, by `take`."""

    def __init__(
        self,
        metadata: RemoteDefinitions,
        is_open: Callable[[], bool],
        steady_ms: Callable[[], int],
        why_closed: Callable[[], str],
    ):
        self.metadata = metadata
        self.writer = _Writer()
        self.committer = _Committer()
        self.space: Any = None
        self.quarantined = 0
        self.broken_rows = 0
        self.missing = 0
        self.steady_ms = steady_ms
        self._is_open = is_open
        self._why_closed = why_closed
        self._why_no_publishes = ""

    def publishes_allowed(self) -> bool:
        return self._is_open() and not self._why_no_publishes

    def why_no_publishes(self) -> str:
        return self._why_no_publishes if self._is_open() else self._why_closed()

    def take(self, report: Report) -> None:
        """Applies a report of the storage process on this machine."""
        self._why_no_publishes = "" if report.publishes_allowed else report.why_no_publishes or "the disk is full"
        self.quarantined, self.broken_rows = report.quarantined, report.broken_rows
        self.missing = report.missing
        seconds = self.writer.commit_seconds
        seconds.buckets, seconds.count = report.commit_buckets, sum(report.commit_buckets)
        seconds.sum, seconds.last = report.commit_sum, report.commit_last
        self.committer.waited_ms = report.waited_ms
        if self.space is None:
            self.space = _Space()
        self.space.space.used_fraction = report.disk_used
