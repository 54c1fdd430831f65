"""How long to wait before trying again: full jitter, so that clients that were cut together do not come back
together."""

from __future__ import annotations

import math

from push.client.config import Limits


def ceiling_s(tries: int, limits: Limits) -> float:
    """The longest wait in seconds before try number `tries` (from 0): it doubles up to the cap."""
    return min(limits.backoff_cap_s, limits.backoff_base_s * 2.0 ** min(tries, 30))


def asked_wait_s(asked_s: float, chance: float, limits: Limits) -> float:
    """How long to wait if the server asked for `asked_s`: all of it; above the cap, `chance` (0…1) picks between half
    the cap and the cap, as clients that were asked for the same time would come back together."""
    cap_s = limits.asked_wait_cap_s
    return asked_s if asked_s <= cap_s else cap_s * (0.5 + chance / 2)


def delay_s(tries: int, asked_s: float, chance: float, limits: Limits) -> float:
    """The wait in seconds: what the server asks of this client, plus `chance` (0…1) of the ceiling.

    A server draws the time that it asks of each client evenly from a window; another draw from that time would bring
    most of the clients back at the beginning of the window.
    """
    return asked_wait_s(asked_s, chance, limits) + chance * ceiling_s(tries, limits)


def retry_ms(attempt: int, chance: float, limits: Limits) -> int:
    """How many ms a message waits after its handler raised at this attempt (from 1): the ceiling doubles up to the cap,
    and `chance` (0…1) picks between half of it and all."""
    window_s = min(limits.retry_cap_s, limits.retry_base_s * 2.0 ** min(max(attempt, 1) - 1, 30))
    return math.ceil(window_s * 1000 * (0.5 + chance / 2))
