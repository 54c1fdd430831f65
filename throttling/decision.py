"""What a limit says about one request."""

from __future__ import annotations

import msgspec


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one hit. Times are nanoseconds of the limiter's clock."""

    allowed: bool
    remaining: int
    """How much cost would still be allowed at this moment."""
    retry_after: int | None
    """Nanoseconds until the same cost would be allowed, 0 when it was; None: never, the cost is above the burst."""
    new_tat: int
    """The theoretical arrival time to keep for the next hit."""
