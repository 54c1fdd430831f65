"""Decides whether a request fits its rate: the generic cell rate algorithm (ITU-T I.371, annex A), without a clock.

All that is kept for a principal is one number, its theoretical arrival time (`tat`): the moment at which everything it
was granted so far would have been spent evenly at the rate. A hit moves it forward by cost / rate; a hit that would
move it more than burst / rate ahead of now is refused and moves nothing.
"""

from __future__ import annotations

from throttling.decision import Decision

NS_PER_S = 1_000_000_000


def decide(tat: int, now: int, rate: int, burst: int, cost: int) -> Decision:
    """Decide one hit.

    `tat` and `now` are nanoseconds of one clock, `tat` is 0 for a principal not seen before; `rate` is cost per second
    (1 … 10**9), `burst` the cost allowed at one instant. Integers keep `remaining` exact. An interval is rounded down
    to whole nanoseconds, so a rate that does not divide 10**9 is exceeded by less than rate / 10**9 of itself.
    """
    interval = NS_PER_S // rate
    start = tat if tat > now else now
    new_tat = start + interval * cost
    room = now + interval * burst - new_tat
    if room >= 0:
        return Decision(True, room // interval, 0, new_tat)
    remaining = (now + interval * burst - start) // interval
    return Decision(False, max(0, remaining), -room if cost <= burst else None, tat)
