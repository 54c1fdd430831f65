"""Limits of the out-cluster manager, each with its unit last."""

from __future__ import annotations

from typing import Final

HOT_AT: Final = 0.80
"""Part of its capacity from which a cluster gets no new queue, and grows if it stays there."""
COOL_AT: Final = 0.70
"""Part of its capacity at which a hot cluster gets new queues again: a cluster near the edge does not flap."""
SHRINK_BELOW: Final = 0.30
"""Part of its capacity below which a cluster gives a node back, if it stays there."""
TARGET: Final = 0.55
"""Part of its capacity that a cluster is sized for when it grows, and that it must not exceed by shrinking."""
EXPAND_AFTER_MS: Final = 60_000
"""How long a cluster is hot before it grows."""
SHRINK_AFTER_MS: Final = 900_000
"""How long a cluster is nearly idle before it shrinks: growing again costs more than waiting."""
PAUSE_MS: Final = 300_000
"""Pause between two changes of a cluster's size, so that the effect of the first one shows."""
PAUSE_DOUBLINGS_MAX: Final = 4
"""How often the pause doubles while a cluster grows and stays hot."""
REPORT_MS_MAX: Final = 30_000
"""A cluster without a report for this long is neither given queues nor resized."""
CALL_MS_MAX: Final = 600_000
"""How long a call to the provisioner may take, unless the settings say otherwise."""
CALL_SLACK_MS: Final = 30_000
"""How long beyond its time a call is waited for whose manager is gone."""
RELIEF_MS: Final = 60_000
"""Pause between two searches for queues that should leave a hot cluster: measured needs are never the same twice."""
RELIEF_MOVES_MAX: Final = 2
"""Moves between clusters in progress at a time; the manager begins no further one."""
RELIEF_DRAIN_MS: Final = 3_600_000
"""How long at most a move counts in `relief_moves_max` while the old cluster has messages."""
RELIEF_SEEN_MS: Final = 10_000
"""How long a move that the manager has just begun counts in `relief_moves_max`, whether it was seen or not."""
RELIEF_REST_MS: Final = 600_000
"""How long the manager leaves a queue alone that it has moved, so that none moves back and forth."""
RELIEF_REFUSED_MS: Final = 3_600_000
"""How long it leaves a queue alone that cannot move."""
MERGE_BELOW: Final = 0.50
"""Part of its capacity below which a cluster must stay when it takes the whole of a shared queue. Its load may then
grow by half, and more, before it is hot: a small rise does not split the queue again."""
MERGE_AFTER_MS: Final = 3_600_000
"""How long, without interruption, one of its clusters could handle a shared queue alone before it is merged. That is
six rests: a load that rises and falls within the hour leaves the queue split."""
MERGE_PLACES_MIN: Final = 64
"""Further places, of some 500 that a queue may ever be given, that must be left for it to be merged: otherwise it could
not be split again."""
COLD_QUEUES_MAX: Final = 256
"""Shared queues that are watched at a time for a merge."""
ATTEMPTS_MAX: Final = 256
"""Queues that it leaves alone at a time; with so many it begins no move."""
TURNS_MAX: Final = 10
"""Events in `turns_ms` of a cluster that becomes hot, cool, ill or well: flapping displaces few other events."""
TURNS_MS: Final = 600_000
"""The time for which `turns_max` counts."""
EVENTS_MAX: Final = 256
"""Latest events of the manager that are kept: what it saw and decided."""
NAMED_MAX: Final = 3
"""Queues that one event names."""
NODES_ADDED_MAX: Final = 4
"""Nodes that one decision adds."""
CLUSTERS_MAX: Final = 1_000
"""Clusters of one manager."""
MOVES_PER_ROUND_MAX: Final = 16
"""Queues that one round begins to move between clusters."""
PLAN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of a plan file."""
PLAN_ENTRIES_MAX: Final = 10_000
"""Moves in one plan file, and likewise its entries of partitions."""
PARTITIONS_MAX: Final = 256
"""Partitions that a plan may give a queue."""
