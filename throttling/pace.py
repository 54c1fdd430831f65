"""Paces what may come in at a rate: new sockets, and connections. By GCRA, with a number for the whole process, and one
for each that comes, so that nobody uses it up alone."""

from __future__ import annotations

import math
from collections import OrderedDict

from throttling.config import PACE_OF_ONE_FRACTION, SUBJECTS_MAX
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


class FairPace:
    """A pace of which one subject gets nine tenths at the most: however often it comes, others come in."""

    def __init__(self, *, rate: int, burst: int, subjects_max: int = SUBJECTS_MAX) -> None:
        self.rate = rate
        self._whole = Pace(rate=rate, burst=burst)
        self._own_burst = math.ceil(burst * PACE_OF_ONE_FRACTION)
        self._own_window_ns = round(self._own_burst * NS_PER_S / (rate * PACE_OF_ONE_FRACTION))
        self._subjects_max = subjects_max
        self._owed: OrderedDict[str, int] = OrderedDict()
        """Subject → theoretical arrival time, longest not seen first."""

    def __len__(self) -> int:
        """Subjects that are remembered."""
        return len(self._owed)

    def admits(self, now_ns: int, subject: str) -> bool:
        """Counts one that comes, on its own account and on that of all; False counts on neither."""
        own = decide(self._owed.get(subject, 0), now_ns, self._own_window_ns, self._own_burst, 1)
        if not own.allowed or not self._whole.admits(now_ns):
            return False
        self._owed[subject] = own.new_tat
        self._owed.move_to_end(subject)
        self._forget(now_ns)
        return True

    def _forget(self, now_ns: int) -> None:
        """Those that owe nothing, two for each that comes; and of too many the one that was not seen for longest."""
        for _ in range(2):
            first = next(iter(self._owed))
            if self._owed[first] > now_ns and len(self._owed) <= self._subjects_max:
                return
            del self._owed[first]
            if not self._owed:
                return
