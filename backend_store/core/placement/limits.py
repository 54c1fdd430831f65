"""Limits of one round of placement, each with its unit last."""

from __future__ import annotations

from typing import Final

COPIES_MOVED_PER_ROUND_MAX: Final = 8
"""Copies of shards that one round starts to move for draining, zones or balance: moving data uses what serving needs.
Copies that replace lost ones do not count."""
LEADS_MOVED_PER_ROUND_MAX: Final = 32
"""Leaderships that one round hands over for balance: no data moves, and a shard's publishers wait for milliseconds."""
IMBALANCE_TOLERATED: Final = 0.10
"""Part by which a node's load may differ from its share before copies are moved: loads change by themselves."""
GAIN_MIN: Final = 0.5
"""A copy is moved only if the higher load of the two nodes falls by at least this part of the copy's weight."""
TAKERS_TRIED_MAX: Final = 8
"""Nodes with the lowest load that are tried for a copy, and as many of the giver's zone."""
NODE_COPIES_MAX: Final = 10_000
"""Copies of shards on one node."""
