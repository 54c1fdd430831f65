"""Bounds of the demo of a cluster. Times are in seconds."""

from __future__ import annotations

from typing import Final

PUBLISH_EVERY_SECONDS: Final = 0.02
"""A new number so often, while fewer than `UNCONFIRMED_MAX` wait for their answer."""
UNCONFIRMED_MAX: Final = 100
AGAIN_SECONDS: Final = 0.25
"""The pause before a message that was not confirmed is sent again, under the same id."""
CREDIT: Final = 64
LEASE_MS: Final = 5_000
"""What was on its way to a connection that died comes again so much later."""
SETTLED_SECONDS: Final = 2.0
"""A message that was confirmed is on its way for so long; then it is missing until it comes."""
AWAY_SECONDS_MIN: Final = 0.5
"""A silence that is shorter is no time without service."""
BAR_SECONDS: Final = 0.5
BARS_MAX: Final = 120
"""A minute of the plot."""
EVENTS_MAX: Final = 40
LOOK_SECONDS: Final = 0.4
"""Between two looks at the processes and at who leads."""
DOWN_SECONDS: Final = 2.0
"""How long a part that was killed stays so, for the reader to see it."""
REVIVE_AGAIN_SECONDS: Final = 2.0
"""The pause before a part that did not start is started again."""
