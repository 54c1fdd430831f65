"""Limits of the cluster demo. Times are in seconds."""

from __future__ import annotations

from typing import Final

PUBLISH_EVERY_SECONDS: Final = 0.02
"""How often a number is published, while fewer than `UNCONFIRMED_MAX` are unconfirmed."""
UNCONFIRMED_MAX: Final = 100
AGAIN_SECONDS: Final = 0.25
"""The pause before a message that was not confirmed is sent again, under the same id."""
CREDIT: Final = 64
LEASE_MS: Final = 5_000
"""The lease of a delivery: messages in flight on a connection that died are redelivered after this time."""
SETTLED_SECONDS: Final = 2.0
"""A confirmed message counts as in flight for this long; then it counts as missing until it arrives."""
AWAY_SECONDS_MIN: Final = 0.5
"""A shorter gap in deliveries is not counted as time without service."""
BAR_SECONDS: Final = 0.5
BARS_MAX: Final = 120
"""The plot covers one minute."""
EVENTS_MAX: Final = 40
LOOK_SECONDS: Final = 0.4
"""The pause between two checks of the processes and leaders."""
DOWN_SECONDS: Final = 2.0
"""How long a killed process stays down, so that the reader can see it."""
REVIVE_AGAIN_SECONDS: Final = 2.0
"""The pause before a failed start of a process is retried."""
