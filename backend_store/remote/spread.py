"""How many queues lie in each cluster, and how many came lately; counted as definitions come and go."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from backend_store.core.outer.limits import REPORT_MS_MAX
from backend_store.model import QueueDefinition
from backend_store.remote.limits import RECENT_QUEUES_MAX


class Spread:
    """By the clusters as definitions name them."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.queues: Counter[str] = Counter()
        self._clock_ms = clock_ms
        self._recent: deque[tuple[int, str]] = deque(maxlen=RECENT_QUEUES_MAX)
        """When they were made, and where they lie, of those that a manager's last report may not know."""

    def put(self, before: QueueDefinition | None, now: QueueDefinition) -> None:
        """`before`: what was known under that name."""
        if before is not None:
            self.queues.subtract(_clusters_of(before))
        self.queues.update(_clusters_of(now))
        is_new = before is None or before.uid != now.uid
        if is_new and now.created_at_ms > self._clock_ms() - REPORT_MS_MAX:
            self._recent.append((now.created_at_ms, now.cluster))

    def remove(self, definition: QueueDefinition) -> None:
        self.queues.subtract(_clusters_of(definition))

    def since(self, cluster: str, at_ms: int) -> int:
        """How many were made there after that time."""
        return sum(made_ms > at_ms and where == cluster for made_ms, where in self._recent)


def _clusters_of(definition: QueueDefinition) -> list[str]:
    """Where publishes of it go."""
    return [definition.cluster, *(one.cluster for one in definition.beside)]
