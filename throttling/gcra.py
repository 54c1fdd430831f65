"""Decides whether a request fits its rate: the generic cell rate algorithm (ITU-T I.371, annex A), without a clock.

One number is stored for a subject, its theoretical arrival time (`tat`): the moment at which everything it
was granted so far would have been spent evenly at the rate. A hit moves it forward by cost / rate; a hit that would
move it more than a window ahead of now is refused and moves nothing. `gcra.lua` is the same in Redis.
"""

from __future__ import annotations

from typing import NamedTuple

NS_PER_S = 1_000_000_000


class Decision(NamedTuple):
    """The outcome of one hit on one rule, in the unit of its times."""

    allowed: bool
    remaining: int
    """How much cost would still be allowed at this moment."""
    retry_after: int | None
    """Time until the same cost would be allowed; 0 if it was; None: never, as the cost is above the quota."""
    new_tat: int
    """The theoretical arrival time to store for the next hit."""


def decide(tat: int, now: int, window: int, quota: int, cost: int) -> Decision:
    """Decides one hit on `quota` in `window`, all of which may come at one instant.

    `tat`, `now` and `window` are whole nanoseconds of one clock; `tat` is 0 for a subject not seen before. The time
    that a cost takes is rounded down to a nanosecond, so rates above `RATE_PER_S_MAX` make no sense, and a rate is
    exceeded by less than a billionth of a second's worth a hit.
    """
    if tat > now:
        # `tat` is further ahead only after the clock went back: that must not lock the subject out for longer.
        start = min(tat, now + window)
    else:
        start = now
    new_tat = start + cost * window // quota
    room = now + window - new_tat
    if room >= 0:
        return Decision(True, room * quota // window, 0, new_tat)
    remaining = (now + window - start) * quota // window
    return Decision(False, remaining, -room if cost <= quota else None, start)
