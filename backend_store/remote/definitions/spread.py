"""Counts the queues in each cluster, and those made lately, as definitions come and go."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from backend_store.core.outer.limits import REPORT_MS_MAX
from backend_store.model import QueueDefinition
from backend_store.remote.limits import RECENT_QUEUES_MAX


class Spread:
    """The counts by cluster key; `RemoteDefinitions` owns it."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.queues: Counter[str] = Counter()
        self._clock_ms = clock_ms
        self._recent: deque[tuple[int, str]] = deque(maxlen=RECENT_QUEUES_MAX)
        """(creation time in ms, cluster) of queues that a manager's last report may not include."""

    def put(self, before: QueueDefinition | None, now: QueueDefinition) -> None:
        """Counts a new or changed definition. `before`: the one known under its name, None if there was none."""
        if before is not None:
            self.queues.subtract(_clusters_of(before))
        self.queues.update(_clusters_of(now))
        is_new = before is None or before.uid != now.uid
        if is_new and now.created_at_ms > self._clock_ms() - REPORT_MS_MAX:
            self._recent.append((now.created_at_ms, now.cluster))

    def remove(self, definition: QueueDefinition) -> None:
        self.queues.subtract(_clusters_of(definition))

    def since(self, cluster: str, at_ms: int) -> int:
        """The number of queues made in a cluster after a time."""
        return sum(made_ms > at_ms and where == cluster for made_ms, where in self._recent)


def _clusters_of(definition: QueueDefinition) -> list[str]:
    """The clusters that publishes of a queue go to."""
    return [definition.cluster, *(one.cluster for one in definition.beside)]
