"""How long to wait before trying again: full jitter, so that clients cut at one moment do not come back at one."""

from __future__ import annotations

from push.client.config import Limits


def ceiling_s(tries: int, limits: Limits) -> float:
    """The longest wait before try number `tries` (from 0): it doubles up to the cap."""
    return min(limits.backoff_cap_s, limits.backoff_base_s * 2.0 ** min(tries, 30))


def delay_s(tries: int, asked_s: float, chance: float, limits: Limits) -> float:
    """The wait to keep: `chance` (0…1) of the longest, which a server that asks for more time widens."""
    return chance * max(ceiling_s(tries, limits), asked_s)
