"""Bounds of clusters for development, and what their manager is told. Times are in seconds."""

from __future__ import annotations

from typing import Final

READY_SECONDS_MAX: Final = 60.0
"""How long one part of `pushq dev-cluster` may take until it is ready."""
END_SECONDS_MAX: Final = 15.0
"""How long a part of `pushq dev-cluster` may take to end by itself; then it is killed."""
ASK_SECONDS_MAX: Final = 2.0
"""How long a part may take to say how it is."""
LOOK_SECONDS: Final = 0.1
"""The pause between two looks at a part that starts or ends."""
LOG_TAIL_BYTES: Final = 2_000
"""What is shown of the log of a part that does not start."""
BALLAST_BYTES: Final = 1 << 20
"""The ballast of each part: several share one disk here."""
TURN_SECONDS_MAX: Final = 120.0
"""How long a command of `pushq dev-cluster` waits until another one no longer changes the same folder."""
CLUSTERS_MAX: Final = 4
"""Clusters of one folder of `pushq dev-cluster`: each has three backends or more."""
BACKENDS_MIN: Final = 3
"""Backends of each cluster at the start, and below which none shrinks: so many copies are kept."""
BACKENDS_MAX: Final = 6
"""Backends that one cluster of `pushq dev-cluster` may grow to."""
LEAVE_SECONDS_MAX: Final = 570.0
"""How long a backend of `pushq dev-cluster` may take to give all its copies away; its manager waits 10 minutes."""
MANAGER_LOOK_SECONDS: Final = 1
"""How often the manager of `pushq dev-cluster` looks at its clusters."""
GROW_AFTER_SECONDS: Final = 15
"""How long a cluster of `pushq dev-cluster` is hot before it grows."""
SHRINK_AFTER_SECONDS: Final = 120
"""How long a cluster of `pushq dev-cluster` is nearly idle before it shrinks."""
PAUSE_SECONDS: Final = 30
"""The pause between two changes of the size of a cluster of `pushq dev-cluster`."""
EVEN_OUT_AFTER_SECONDS: Final = 3
"""How long after a backend came a cluster of `pushq dev-cluster` with several gives it its share of copies."""
LEAVE_LOOK_SECONDS: Final = 0.5
"""The pause between two looks at a backend of `pushq dev-cluster` that gives its copies away."""
CALL_BYTES_MAX: Final = 64 * 1024
"""What `pushq dev-cluster provision` reads of a manager's call."""
