"""How long to wait before trying again: full jitter, so that clients cut at one moment do not come back at one."""

from __future__ import annotations

import math

from push.client.config import Limits


def ceiling_s(tries: int, limits: Limits) -> float:
    """The longest wait before try number `tries` (from 0): it doubles up to the cap."""
    return min(limits.backoff_cap_s, limits.backoff_base_s * 2.0 ** min(tries, 30))


def asked_wait_s(asked_s: float, chance: float, limits: Limits) -> float:
    """What to keep of a wait that was asked for: all of it, or of one above the cap `chance` (0…1) between half the cap
    and all: those who were asked alike would come back at one moment."""
    cap_s = limits.asked_wait_cap_s
    return asked_s if asked_s <= cap_s else cap_s * (0.5 + chance / 2)


def delay_s(tries: int, asked_s: float, chance: float, limits: Limits) -> float:
    """The wait to keep: what the server asks of this client, and then `chance` (0…1) of the longest.

    A server draws what it asks of each client evenly from a window; to draw from that once more would bring most of
    them back in the window's beginning.
    """
    return asked_wait_s(asked_s, chance, limits) + chance * ceiling_s(tries, limits)


def retry_ms(attempt: int, chance: float, limits: Limits) -> int:
    """How long a message waits whose handler raised at this attempt (from 1): it doubles up to the cap, and of that
    `chance` (0…1) is between half and all."""
    window_s = min(limits.retry_cap_s, limits.retry_base_s * 2.0 ** min(max(attempt, 1) - 1, 30))
    return math.ceil(window_s * 1000 * (0.5 + chance / 2))
