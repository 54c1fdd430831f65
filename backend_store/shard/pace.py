"""A rate limiter for reading copies that are made elsewhere: a budget of bytes that refills with time. Has no clock."""

from __future__ import annotations


class Pace:
    """A read may exceed the budget, and the next one waits for it: pages are not cut."""

    def __init__(self, bytes_per_s: int) -> None:
        """`bytes_per_s` 0: no limit."""
        self._rate = bytes_per_s
        self._free_at = 0.0
        self.taken = 0
        """Bytes, since the process began."""

    def wait_s(self, now: float) -> float:
        """Seconds until the next page may be read."""
        return max(0.0, self._free_at - now)

    def take(self, size: int, now: float) -> None:
        self.taken += size
        if self._rate:
            self._free_at = max(self._free_at, now) + size / self._rate
