"""Paces what may come in at a rate: new sockets, and connections. By GCRA, with one number for the whole process."""

from __future__ import annotations

from throttling.gcra import NS_PER_S, decide


class Pace:
    """At most `rate` a second, `burst` of which may come at once."""

    def __init__(self, *, rate: int, burst: int) -> None:
        self.rate = rate
        self.burst = burst
        self._window_ns = burst * NS_PER_S // rate
        self._tat = 0

    def admits(self, now_ns: int) -> bool:
        """Counts one that comes; False when it is one too many, and then it does not count."""
        decision = decide(self._tat, now_ns, self._window_ns, self.burst, 1)
        self._tat = decision.new_tat
        return decision.allowed
