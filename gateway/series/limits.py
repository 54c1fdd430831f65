"""Bounds of the series that a process keeps, each with its unit last."""

from __future__ import annotations

from typing import Final

SAMPLE_SECONDS: Final = 2.0
"""The pause between two looks at the process and at queues that something happened to, for alerts: of what goes on for
the time of a rule it takes two to say so. Every second or third is kept in the series."""
SAMPLE_CORE_FRACTION_MAX: Final = 0.02
"""The part of a core that looking at queues may take: with more to look at it is done less often."""
SAMPLE_SECONDS_MAX: Final = 60.0
"""The longest pause between two looks, however long they take."""
QUEUES_PER_TURN_MAX: Final = 200
"""Queues that are looked at in one turn of the loop."""
SERIES_BYTES_MAX: Final = 160 * 1024 * 1024
"""Memory of series that change or are read; beyond it those of the queues that were quiet for longest are packed."""
QUIET_SERIES_MAX: Final = 100_000
"""Queues with series, packed or not; beyond it those of the queues that were quiet for longest are forgotten."""
SAVE_SECONDS: Final = 120.0
"""How often the series are written to the disk; a crash loses no more."""
QUEUES_PER_WRITE_MAX: Final = 250
"""Series that are copied in one turn, to be written."""
SPARK_POINTS_MAX: Final = 180
"""Points that one queue of a list may have."""
SPARK_NAMES_MAX: Final = 200
"""Queues that one request may name; without names it gets all of them, page by page."""
