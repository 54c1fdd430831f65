"""Limits of the out-cluster manager's process, each with its unit last."""

from __future__ import annotations

from typing import Final

DUTY_LOOKS: Final = 3
"""A manager that is silent for so many of its looks, or for one look and 9 s where that is longer, loses the duty to
the next that asks."""
HEAR_SECONDS_MAX: Final = 3.0
"""How long a shard may take to report, and the home cluster to answer for the duty and for writes."""
STALL_LOOKS: Final = 4
"""A manager that has not completed a look for so many looks says so in `/health`."""
