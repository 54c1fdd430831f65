"""Bounds of one round of placement, each with its unit last."""

from __future__ import annotations

from typing import Final

COPIES_MOVED_PER_ROUND_MAX: Final = 8
"""Copies of shards that one round begins to move for balance: moving data costs what serving needs. Copies that
replace lost ones are not counted against it."""
LEADS_MOVED_PER_ROUND_MAX: Final = 32
"""Leaderships that one round hands over: no data moves, and the publishers of the shard wait for milliseconds."""
IMBALANCE_TOLERATED: Final = 0.10
"""A node may carry this part more or less than its share before copies are moved: loads change by themselves."""
GAIN_MIN: Final = 0.5
"""A copy is moved only if the difference of the two nodes shrinks by at least this part of the copy's weight."""
TAKERS_TRIED_MAX: Final = 8
"""Nodes that carry least which are looked at for a copy, and as many of the giver's zone."""
NODE_COPIES_MAX: Final = 10_000
"""Copies of shards that one node keeps."""
