"""Automatic growing and shrinking of a queue (`auto_expand`): how many open partitions its load needs.

The load is what is stored in all partitions; the capacity is `limit` per open partition. A queue grows at once to as
many partitions as keep the load below `at_percent` of the capacity, and shrinks by one when the load has been below
`shrink_percent` for a while. A queue that has just grown is not about to shrink, nor the other way round: after a step
in one direction the load is well within the bound of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

SHRINK_AFTER_MS = 60_000
"""How long the load must be low before a partition is given up, so that a pause does not shrink the queue."""
EXPAND_CHECK_MS = 1_000
"""How often the load is checked."""


class ExpandRule(Protocol):
    """The `auto_expand` setting. `limit` is in messages or bytes, as `of` says; the caller measures accordingly."""

    @property
    def limit(self) -> int: ...
    @property
    def at_percent(self) -> int: ...
    @property
    def shrink_percent(self) -> int: ...
    @property
    def max_partitions(self) -> int: ...


class Wanted(NamedTuple):
    """How many partitions should be open, and since when the load is low (None: it is not), for the next check."""

    partitions: int
    low_since_ms: int | None


def wanted_partitions(
    rule: ExpandRule, loads: Sequence[int], *, partitions: int, least: int, low_since_ms: int | None, now_ms: int
) -> Wanted:
    """Returns the result of one check, which is not made while slots move. `loads`: those of all partitions with
    messages, draining ones too; `partitions`: how many are open; `least`: the queue's own setting, below which it never
    shrinks.
    """
    load = sum(loads)
    if load * 100 >= rule.at_percent * rule.limit * partitions:
        needed = load * 100 // (rule.at_percent * rule.limit) + 1
        return Wanted(max(partitions, min(needed, rule.max_partitions)), None)
    if partitions <= least or not _is_low(rule, load, partitions):
        return Wanted(partitions, None)
    since = now_ms if low_since_ms is None else low_since_ms
    if now_ms - since < SHRINK_AFTER_MS:
        return Wanted(partitions, since)
    return Wanted(partitions - 1, None)


def _is_low(rule: ExpandRule, load: int, partitions: int) -> bool:
    """Whether the load is low now, and not high with one partition less, however the percentages are chosen."""
    is_low = load * 100 < rule.shrink_percent * rule.limit * partitions
    return is_low and load * 100 < rule.at_percent * rule.limit * (partitions - 1)
