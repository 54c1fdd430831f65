"""Bounds of clusters for development, and the settings of their manager. Times are in seconds."""

from __future__ import annotations

from typing import Final

READY_SECONDS_MAX: Final = 60.0
"""How long one part of `pushq dev-cluster` may take to become ready."""
END_SECONDS_MAX: Final = 15.0
"""How long a part of `pushq dev-cluster` may take to end by itself; then it is killed."""
ASK_SECONDS_MAX: Final = 2.0
"""How long a part may take to answer a health request."""
LOOK_SECONDS: Final = 0.1
"""The pause between two checks of a part that starts or ends."""
LOG_TAIL_BYTES: Final = 2_000
"""How much of the log of a part that does not start is shown."""
BALLAST_BYTES: Final = 1 << 20
"""The ballast of each part: here several parts share one disk."""
TURN_SECONDS_MAX: Final = 120.0
"""How long a command of `pushq dev-cluster` waits for another command that changes the same folder."""
CLUSTERS_MAX: Final = 4
"""Clusters in one folder of `pushq dev-cluster`: each has three backends or more."""
BACKENDS_MIN: Final = 3
"""Backends of each cluster at the start, and the fewest it may shrink to: as many as copies are kept."""
BACKENDS_MAX: Final = 6
"""Backends that one cluster of `pushq dev-cluster` may grow to."""
LEAVE_SECONDS_MAX: Final = 570.0
"""How long a backend of `pushq dev-cluster` may take to hand over all its copies; its manager waits 10 minutes."""
MANAGER_LOOK_SECONDS: Final = 1
"""How often the manager of `pushq dev-cluster` checks its clusters."""
GROW_AFTER_SECONDS: Final = 15
"""How long a cluster of `pushq dev-cluster` is hot before it grows."""
SHRINK_AFTER_SECONDS: Final = 120
"""How long a cluster of `pushq dev-cluster` is nearly idle before it shrinks."""
PAUSE_SECONDS: Final = 30
"""The pause between two changes of the size of a cluster of `pushq dev-cluster`."""
EVEN_OUT_AFTER_SECONDS: Final = 3
"""How long after a new backend a cluster of `pushq dev-cluster` with several clusters gives it its share of copies."""
LEAVE_LOOK_SECONDS: Final = 0.5
"""The pause between two checks of a backend of `pushq dev-cluster` that hands over its copies."""
CALL_BYTES_MAX: Final = 64 * 1024
"""Bytes of a manager's request that `pushq dev-cluster provision` reads."""
