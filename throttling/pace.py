"""Limits the rate of new sockets and connections, by GCRA: one rate for the whole process, and one for each subject, so
that no subject uses up all of it."""

from __future__ import annotations

import math
from collections import OrderedDict

from throttling.config import PACE_OF_ONE_FRACTION, SUBJECTS_MAX
from throttling.gcra import NS_PER_S, decide


class Pace:
    """At most `rate` a second, of which `burst` may come at once."""

    def __init__(self, *, rate: int, burst: int) -> None:
        self.rate = rate
        self.burst = burst
        self._window_ns = burst * NS_PER_S // rate
        self._tat = 0

    def admits(self, now_ns: int) -> bool:
        """Counts one arrival; False if it is above the rate, and then it is not counted."""
        decision = decide(self._tat, now_ns, self._window_ns, self.burst, 1)
        self._tat = decision.new_tat
        return decision.allowed


class FairPace:
    """A rate of which one subject gets nine tenths at most: however often it comes, others come in."""

    def __init__(self, *, rate: int, burst: int, subjects_max: int = SUBJECTS_MAX) -> None:
        self.rate = rate
        self._whole = Pace(rate=rate, burst=burst)
        self._own_burst = math.ceil(burst * PACE_OF_ONE_FRACTION)
        self._own_window_ns = round(self._own_burst * NS_PER_S / (rate * PACE_OF_ONE_FRACTION))
        self._subjects_max = subjects_max
        self._owed: OrderedDict[str, int] = OrderedDict()
        """Subject → theoretical arrival time, longest not seen first."""

    def __len__(self) -> int:
        """The number of subjects that are remembered."""
        return len(self._owed)

    def admits(self, now_ns: int, subject: str) -> bool:
        """Counts one arrival, on the subject's account and on that of all; False if either refuses, and then on
        neither."""
        own = decide(self._owed.get(subject, 0), now_ns, self._own_window_ns, self._own_burst, 1)
        if not own.allowed or not self._whole.admits(now_ns):
            return False
        self._owed[subject] = own.new_tat
        self._owed.move_to_end(subject)
        self._forget(now_ns)
        return True

    def _forget(self, now_ns: int) -> None:
        """Forgets up to two idle subjects at each arrival; if there are too many, the one that was not seen for
        longest."""
        for _ in range(2):
            first = next(iter(self._owed))
            if self._owed[first] > now_ns and len(self._owed) <= self._subjects_max:
                return
            del self._owed[first]
            if not self._owed:
                return
