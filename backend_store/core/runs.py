"""Ready messages of one lane, in the order in which they may be handed out.

A *run* is a chunk and some of its bits. Which run comes next is what the kinds of queue differ in: arrival order here;
by key in `keyed` (strict order) and `fair` (fair share).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from backend_store.core.bits import lowest
from backend_store.core.leases import ChunkState


class Run:
    """Messages of one chunk that may be handed out."""

    __slots__ = ("bits", "state")

    def __init__(self, state: ChunkState, bits: int):
        self.state = state
        self.bits = bits


class Runs(Protocol):
    """What a lane asks of its ready messages. Bits that are no longer free are passed over, whenever that happened."""

    def __bool__(self) -> bool:
        """Whether something may be handed out now."""

    def __len__(self) -> int:
        """How many runs are in memory; new chunks stay on the disk when there are many."""

    @property
    def wants_more(self) -> bool:
        """Whether the lane should read its next chunk now: nothing is here, or nothing that should go first."""

    def push(self, state: ChunkState, bits: int) -> None:
        """Adds a chunk's messages behind all others."""

    def put_back(self, state: ChunkState, bits: int) -> None:
        """Makes messages the first to be handed out: they came back, or became due."""

    def missing(self) -> int | None:
        """The chunk that the next `draw` needs and that is not in memory."""

    def draw(self, limit: int) -> tuple[ChunkState, int] | None:
        """Takes up to `limit` messages of one chunk for one consumer."""

    def freed(self, state: ChunkState, bits: int) -> None:
        """Messages that were drawn are settled, dead or given back, and that is on disk. Before `put_back`."""

    def hold(self, state: ChunkState, bits: int) -> None:
        """Messages that count as drawn after a restart: their lease was kept, or their retry waits for its time."""

    def clear(self) -> None: ...


class ArrivalRuns:
    """As they came: the plain queue."""

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
        """Nobody waits for anybody here."""

    def hold(self, state: ChunkState, bits: int) -> None:
        """Nobody waits for anybody here."""

    def clear(self) -> None:
        self._runs.clear()
