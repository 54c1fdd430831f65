"""Bounds of the process of the out-cluster manager, each with its unit last."""

from __future__ import annotations

from typing import Final

DUTY_LOOKS: Final = 3
"""A manager that is silent for so many of its looks, or for 9 s beside one, loses the duty to the next that asks."""
HEAR_SECONDS_MAX: Final = 3.0
"""How long a shard may take to say how it is, and the home cluster for the duty and for what is written."""
STALL_LOOKS: Final = 4
"""A manager that has come to no end for so many looks says so in `/health`."""
