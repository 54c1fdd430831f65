"""The other end of a gateway's line, without the gateway."""

from __future__ import annotations

from backend_store.wire.store_frames import Bits, Defined, Ended, Greeted, Leases, Place, to_bits


class Gateway:
    """Takes what comes, and settles nothing."""

    def __init__(self) -> None:
        self.messages = 0
        self.biggest_bytes = 0
        """Of all frames of leases."""
        self.idle = 0
        """How often it was told that there is nothing."""
        self.tokens: dict[str, Bits] = {}
        """The leases that came."""

    def held(self) -> list[tuple[Place, str, Bits]]:
        return []

    def greeted(self, frame: Greeted) -> None: ...

    def defined(self, frame: Defined, *, is_first: bool) -> None: ...

    def leased(self, frame: Leases) -> None:
        self.messages += sum(to_bits(handed.bits).bit_count() for handed in frame.handed)
        self.idle += len(frame.idle)
        self.tokens.update({handed.token: handed.bits for handed in frame.handed})
        self.biggest_bytes = max(self.biggest_bytes, sum(len(handed.chunk) for handed in frame.handed))

    def ended(self, frame: Ended) -> None: ...

    def lost(self) -> None: ...
