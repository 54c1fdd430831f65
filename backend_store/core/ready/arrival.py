"""Ready messages of one lane, in the order in which they may be leased.

A *run* is a chunk and some of its bits. Each kind of queue picks the next run in its own way: in arrival order here, by
key in `strict` (strict order) and `fair` (fair share).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from backend_store.core.leases.leases import ChunkState
from backend_store.core.log.bits import lowest


class Run:
    """Messages of one chunk that may be leased."""

    __slots__ = ("bits", "state")

    def __init__(self, state: ChunkState, bits: int):
        self.state = state
        self.bits = bits


class Runs(Protocol):
    """The ready messages of a lane. Bits that are no longer free are skipped when they are drawn."""

    def __bool__(self) -> bool:
        """Whether a message may be leased now."""

    def __len__(self) -> int:
        """The number of runs in memory; when there are many, new chunks stay on disk."""

    @property
    def wants_more(self) -> bool:
        """Whether the lane should read its next chunk now, because no message here is ready or should go first."""

    def push(self, state: ChunkState, bits: int) -> None:
        """Adds a chunk's messages behind all others."""

    def put_back(self, state: ChunkState, bits: int) -> None:
        """Puts messages at the front, because they were given back or became due."""

    def missing(self) -> int | None:
        """Returns the base of the chunk that the next `draw` needs if it is not in memory, else None."""

    def draw(self, limit: int) -> tuple[ChunkState, int] | None:
        """Takes up to `limit` messages of one chunk for one consumer. Returns (chunk state, bits), or None."""

    def freed(self, state: ChunkState, bits: int) -> None:
        """Messages that were drawn are settled, dead or given back, and that is on disk. Call it before `put_back`."""

    def hold(self, state: ChunkState, bits: int) -> None:
        """Counts messages as drawn, because their lease outlived a restart or their retry waits for its due time."""

    def clear(self) -> None: ...


class ArrivalRuns:
    """Ready messages in arrival order: the plain queue."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @property
    def wants_more(self) -> bool:
        return not self._runs

    def push(self, state: ChunkState, bits: int) -> None:
        self._runs.append(Run(state, bits))

    def put_back(self, state: ChunkState, bits: int) -> None:
        self._runs.appendleft(Run(state, bits))

    def missing(self) -> int | None:
        runs = self._runs
        while runs:
            run = runs[0]
            if run.bits & run.state.free:
                return None if run.state.chunk is not None else run.state.base
            runs.popleft()
        return None

    def draw(self, limit: int) -> tuple[ChunkState, int] | None:
        runs = self._runs
        while runs:
            run = runs[0]
            bits = run.bits & run.state.free
            if bits.bit_count() > limit:
                drawn = lowest(bits, limit)
                run.bits = bits ^ drawn
                return run.state, drawn
            runs.popleft()
            if bits:
                return run.state, bits
        return None

    def freed(self, state: ChunkState, bits: int) -> None:
        """Does nothing: in arrival order no message waits for another."""

    def hold(self, state: ChunkState, bits: int) -> None:
        """Does nothing: in arrival order no message waits for another."""

    def clear(self) -> None:
        self._runs.clear()
