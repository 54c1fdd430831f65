"""Bounds of a cluster for development. Times are in seconds."""

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
