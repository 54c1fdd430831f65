"""The byte budget of a commit cycle, shared by its partitions."""

from __future__ import annotations

from backend_store.node.limits import CYCLE_BYTES_SOFT_MAX


class CycleBudget:
    """The bound is soft: the last item, one call of any size or one transaction, is taken whole."""

    def __init__(self) -> None:
        self._left = CYCLE_BYTES_SOFT_MAX

    def begin(self) -> None:
        """Resets the budget for a new cycle."""
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
        """Transactions are decided before all publishes and leave them half of the budget."""
        return self._left > CYCLE_BYTES_SOFT_MAX // 2
