"""Byte budget: bounds the bytes of unconfirmed publishes in a process, and shares them among tenants.

A tenant may hold as much as is still free (dynamic thresholds, Choudhury and Hahne 1998). Alone it gets half of the
room, one of n busy tenants 1/(n+1), and there is always something left for one that was quiet: a storm of one tenant
reaches that tenant's own bound, without a table of weights.

The budget is used for other things than bytes as well. If one subject may rightly need most of the room, it may have
several times as much as is still free: with nine times, that subject alone gets nine tenths.
"""

from __future__ import annotations


class Room:
    """A bounded amount, shared among tenants."""

    def __init__(self, bytes_max: int, *, times_free: int = 1) -> None:
        self.bytes_max = bytes_max
        self._times_free = times_free
        self.used = 0
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of tenants that hold something."""
        return len(self._held)

    def held(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def take(self, tenant: str, size: int) -> bool:
        """Whether `size` more bytes fit; if so, they are held until `give`. A tenant that holds nothing always gets one
        piece, as long as the room itself has space for it: a message bigger than its share must not wait for ever."""
        held = self._held.get(tenant, 0)
        free = self.bytes_max - self.used
        if size > free or (held and held + size > free * self._times_free):
            return False
        self._held[tenant] = held + size
        self.used += size
        return True

    def hold(self, tenant: str, size: int) -> None:
        """Counts bytes that must not be refused."""
        self._held[tenant] = self._held.get(tenant, 0) + size
        self.used += size

    def give(self, tenant: str, size: int) -> None:
        left = self._held[tenant] - size
        assert left >= 0, f"tenant {tenant!r} gives back more than it took"
        self.used -= size
        if left:
            self._held[tenant] = left
        else:
            del self._held[tenant]
