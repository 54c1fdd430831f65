"""How fast a backend reads for copies that are made elsewhere: a budget of bytes that fills with time. No clock."""

from __future__ import annotations


class Pace:
    """What is taken may go beyond what is there, and is waited for afterwards: pages are not cut."""

    def __init__(self, bytes_per_s: int) -> None:
        """0: as fast as it goes."""
        self._rate = bytes_per_s
        self._free_at = 0.0
        self.taken = 0
        """Bytes, since the process began."""

    def wait_s(self, now: float) -> float:
        """How long before the next page may be read."""
        return max(0.0, self._free_at - now)

    def take(self, size: int, now: float) -> None:
        self.taken += size
        if self._rate:
            self._free_at = max(self._free_at, now) + size / self._rate
