"""Bounds of the series that a process keeps, each with its unit last."""

from __future__ import annotations

from typing import Final

SAMPLE_SECONDS: Final = 2.0
"""The pause between two samples of the process and of queues to which something happened. Alerts need it: two samples
show that a condition held for the time of a rule. Every second or third sample is kept in the series."""
SAMPLE_CORE_FRACTION_MAX: Final = 0.02
"""The fraction of a core that sampling may take: with more to sample it is done less often."""
SAMPLE_SECONDS_MAX: Final = 60.0
"""The longest pause between two samples, however long they take."""
QUEUES_PER_TURN_MAX: Final = 200
"""Queues that are sampled in one turn of the loop."""
SERIES_BYTES_MAX: Final = 160 * 1024 * 1024
"""Memory of series that change or are read; beyond it the series of the queues that were quiet for longest are
packed."""
QUIET_SERIES_MAX: Final = 100_000
"""Queues with series, packed or not; beyond it the series of the queues that were quiet for longest are dropped."""
SAVE_SECONDS: Final = 120.0
"""How often the series are written to the disk: the most that a crash loses."""
QUEUES_PER_WRITE_MAX: Final = 250
"""Series that are copied in one turn of the loop, to be written."""
SPARK_POINTS_MAX: Final = 180
"""Points that one queue of a list may have."""
SPARK_NAMES_MAX: Final = 200
"""Queues that one request may name; without names it gets all of them, page by page."""
