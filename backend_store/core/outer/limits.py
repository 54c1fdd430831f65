"""Bounds of the out-cluster manager, each with its unit last."""

from __future__ import annotations

from typing import Final

HOT_AT: Final = 0.80
"""Part of its capacity from which a cluster gets no new queue, and grows if it stays there."""
COOL_AT: Final = 0.70
"""Part of its capacity at which a hot cluster gets new queues again: a cluster near the edge does not flap."""
SHRINK_BELOW: Final = 0.30
"""Part of its capacity below which a cluster gives a node back, if it stays there."""
TARGET: Final = 0.55
"""Part of its capacity that a cluster is sized for when it grows, and that must not be passed by shrinking."""
EXPAND_AFTER_MS: Final = 60_000
"""For so long a cluster is hot before it grows."""
SHRINK_AFTER_MS: Final = 900_000
"""For so long a cluster is nearly idle before it shrinks: growing again costs more than waiting."""
PAUSE_MS: Final = 300_000
"""Between two changes of a cluster's size: the first one must have shown what it did."""
PAUSE_DOUBLINGS_MAX: Final = 4
"""So often the pause doubles while a cluster grows and stays hot."""
REPORT_MS_MAX: Final = 30_000
"""A cluster that has said nothing for so long is neither given queues nor resized."""
CALL_MS_MAX: Final = 600_000
"""A call to the provisioner, where the settings say nothing else."""
CALL_SLACK_MS: Final = 30_000
"""So long beyond its time a call is waited for whose manager is gone."""
RELIEF_MS: Final = 60_000
"""Between two looks for queues that a hot cluster should give: what they need is never twice the same."""
RELIEF_MOVES_MAX: Final = 2
"""Moves between clusters under way at once, for the manager to begin another one."""
RELIEF_DRAIN_MS: Final = 3_600_000
"""For so long a move counts in `relief_moves_max` while the old cluster has messages: no longer."""
RELIEF_SEEN_MS: Final = 10_000
"""For so long a move counts in `relief_moves_max` that the manager has just begun, seen or not."""
RELIEF_REST_MS: Final = 600_000
"""For so long the manager leaves a queue alone that it has had moved: none goes back and forth."""
RELIEF_REFUSED_MS: Final = 3_600_000
"""For so long it leaves a queue alone that cannot move."""
MERGE_BELOW: Final = 0.50
"""Part of its capacity below which a cluster stays that takes a shared queue whole. Its load may then grow by half
again, and more, before it is hot: a small rise does not split the queue again."""
MERGE_AFTER_MS: Final = 3_600_000
"""For so long, without a break, one of its clusters could do a shared queue alone before it is merged. That is six
rests: a load that rises and falls within the hour leaves the queue split."""
MERGE_PLACES_MIN: Final = 64
"""So many of the some 500 further places that a queue may be given in its life must be left for it to be merged: else
it could not be split again."""
COLD_QUEUES_MAX: Final = 256
"""Shared queues that are watched at a time for whether they may be merged."""
ATTEMPTS_MAX: Final = 256
"""Queues that it leaves alone at a time; with so many it begins no move."""
TURNS_MAX: Final = 10
"""Events of a cluster that becomes hot, cool, ill or well in `turns_ms`: flapping pushes out few others."""
TURNS_MS: Final = 600_000
"""For so long `turns_max` counts."""
EVENTS_MAX: Final = 256
"""What the manager saw and decided: so many of the last events are kept."""
NAMED_MAX: Final = 3
"""Queues that one event names."""
NODES_ADDED_MAX: Final = 4
"""Nodes that one decision asks for."""
CLUSTERS_MAX: Final = 1_000
"""Clusters of one manager."""
MOVES_PER_ROUND_MAX: Final = 16
"""Queues that one round begins to move between clusters."""
PLAN_BYTES_MAX: Final = 4 * 1024 * 1024
"""A plan file."""
PLAN_ENTRIES_MAX: Final = 10_000
"""Moves of one plan file, and partitions of it."""
PARTITIONS_MAX: Final = 256
"""Partitions that a plan may give a queue."""
