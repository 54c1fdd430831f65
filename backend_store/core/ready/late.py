"""The lane of late messages in a strictly ordered queue: it reads their rows, and the other lane delivers them.

A late message has its place before the others of its key, and a key is with one consumer at a time. So both lanes share
one `StrictRuns`, which knows the keys that are locked.
"""

from __future__ import annotations

from backend_store.core.leases.leases import ChunkState
from backend_store.core.ready.strict import StrictRuns


class LateRuns:
    """A `Runs` from which nothing is drawn: it passes everything on to the lane that delivers."""

    def __init__(self, delivering: StrictRuns):
        self._delivering = delivering

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    @property
    def wants_more(self) -> bool:
        """Late messages go first, so they are read as soon as there is memory for them."""
        return self._delivering.has_room

    def push(self, state: ChunkState, bits: int) -> None:
        self._delivering.push_late(state, bits)

    def put_back(self, state: ChunkState, bits: int) -> None:
        self._delivering.put_back(state, bits)

    def missing(self) -> int | None:
        return None

    def draw(self, limit: int) -> tuple[ChunkState, int] | None:
        return None

    def freed(self, state: ChunkState, bits: int) -> None:
        self._delivering.freed(state, bits)

    def hold(self, state: ChunkState, bits: int) -> None:
        self._delivering.hold(state, bits)

    def clear(self) -> None:
        """Does nothing: the lane that delivers is cleared, too."""
