"""The head of a sorted queue in strict order: late messages go to the head of their key, not of the queue.

A lane of its own reads the late messages from disk, before any other message is drawn, and pushes them into the runs
that have all messages of the queue: a key is with one consumer at a time only where one place knows its messages.
"""

from __future__ import annotations

from backend_store.core.leases.leases import ChunkState
from backend_store.core.limits import LATE_CHUNKS_IN_MEMORY_MAX
from backend_store.core.ready.strict import StrictRuns


class LateRuns:
    """A `Runs` that passes on what is pushed, and never has anything to draw itself.

    Late messages are drawn from `runs`, so they are freed, held and put back there, too.
    """

    def __init__(self, runs: StrictRuns):
        self._runs = runs

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    @property
    def wants_more(self) -> bool:
        return self._runs.late_chunks < LATE_CHUNKS_IN_MEMORY_MAX

    def push(self, state: ChunkState, bits: int) -> None:
        self._runs.push_late(state, bits)

    def put_back(self, state: ChunkState, bits: int) -> None:
        self._runs.put_back(state, bits)

    def missing(self) -> int | None:
        return None

    def draw(self, limit: int) -> tuple[ChunkState, int] | None:
        return None

    def freed(self, state: ChunkState, bits: int) -> None:
        self._runs.freed(state, bits)

    def hold(self, state: ChunkState, bits: int) -> None:
        self._runs.hold(state, bits)

    def clear(self) -> None:
        """Does nothing: the lane that owns the runs clears them."""
