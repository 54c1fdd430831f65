"""The gateway's end of a connection to a backend, without the gateway."""

from __future__ import annotations

from collections.abc import Iterable

from backend_store.client.streams import Gap
from backend_store.wire.store_frames import (
    Bits,
    Copies,
    Defined,
    Ended,
    Greeted,
    GroupNews,
    Leases,
    Place,
    Sought,
    Tails,
    to_bits,
)


class Gateway:
    """Accepts all frames, and settles nothing."""

    def __init__(self, holds: Iterable[tuple[Place, str, Bits]] = ()) -> None:
        """`holds`: leases of an earlier connection."""
        self.messages = 0
        self.biggest_bytes = 0
        """Bytes of chunks in the largest frame of leases."""
        self.idle = 0
        """How often it was told that nothing is ready."""
        self.tokens: dict[str, Bits] = {}
        """The leases received."""
        self.tries: list[int] = []
        """Attempts of redelivered messages."""
        self.unknown: list[str] = []
        """Earlier leases that the backend does not know."""
        self.gone: dict[str, int] = {}
        """The parts of leases that were settled elsewhere."""
        self.gaps: list[Gap] = []
        """What consumer groups missed."""
        self._holds = list(holds)

    def held(self) -> list[tuple[Place, str, Bits]]:
        return self._holds

    def greeted(self, frame: Greeted) -> None:
        self.unknown = [token for _, token in frame.unknown]

    def copied(self, copies: list[Copies]) -> None: ...
    def defined(self, frame: Defined, *, is_first: bool) -> None: ...

    def leased(self, frame: Leases) -> None:
        self.messages += sum(to_bits(handed.bits).bit_count() for handed in frame.handed)
        self.idle += len(frame.idle)
        self.tokens.update({handed.token: handed.bits for handed in frame.handed})
        self.tries += [tries for handed in frame.handed for tries in handed.attempts.values()]
        self.biggest_bytes = max(self.biggest_bytes, sum(len(handed.chunk) for handed in frame.handed))

    def ended(self, frame: Ended) -> None:
        for token, bits in frame.gone:
            self.gone[token] = self.gone.get(token, 0) | to_bits(bits)

    def group_news(self, frame: GroupNews) -> None:
        self.gaps += [Gap(*gap) for _, gaps in frame.missed for gap in gaps]

    def tails(self, frame: Tails) -> None: ...
    def sought(self, frame: Sought) -> None: ...

    def lost(self) -> None: ...
