"""How many bytes a commit cycle takes, shared out among its partitions."""

from __future__ import annotations

from backend_store.node.limits import CYCLE_BYTES_SOFT_MAX


class CycleRoom:
    """The bound is soft: whatever is the last, one call of any size or one step of several queues, is taken whole."""

    def __init__(self) -> None:
        self._left = CYCLE_BYTES_SOFT_MAX

    def begin(self) -> None:
        """A cycle begins with nothing in it."""
        self._left = CYCLE_BYTES_SOFT_MAX

    def take(self, size: int) -> None:
        self._left -= size

    def fits(self, size: int) -> bool:
        return size <= self._left

    @property
    def is_left(self) -> bool:
        return self._left > 0

    @property
    def is_left_for_steps(self) -> bool:
        """Steps of several queues are decided before all publishes, and leave half of the room to them."""
        return self._left > CYCLE_BYTES_SOFT_MAX // 2
