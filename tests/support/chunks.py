"""In-memory chunks whose messages have keys but no content, for tests of what hands them out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from backend_store.core.leases.leases import ChunkState
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import ENTRY_HEADER_BYTES, Chunk
from backend_store.core.ready.arrival import Runs
from backend_store.core.ready.key_index import Key
from backend_store.core.ready.strict import StrictRuns
from backend_store.model import Epoch, Offset


def chunk_state(base: int, keys: Sequence[str | None], *, settled: int = 0) -> ChunkState:
    """A chunk with one message for each key."""
    state = ChunkState(any_chunk(base, len(keys)), settled=settled)
    state.keys = list(keys)
    return state


def any_chunk(base: int, count: int) -> Chunk:
    return Chunk(bytes(ENTRY_HEADER_BYTES), epoch=Epoch(1), base=Offset(base), time_ms=0, count=count, blocks=0)


def numbers(drawn: tuple[ChunkState, int] | None) -> list[int]:
    """The offsets of the messages that a draw handed out."""
    return [] if drawn is None else [drawn[0].base + index for index in indexes(drawn[1])]


class ScannedLane:
    """Runs and the chunks before and after them, each given as the list of its messages' keys."""

    def __init__(self, runs: Runs, chunks: Sequence[Sequence[Key]] = ()):
        self.runs = runs
        self.states: list[ChunkState] = []
        self.bases: list[int] = []
        self.keys: list[Key] = []
        self.read = 0
        for keys in chunks:
            self.store(keys)

    def store(self, keys: Sequence[Key]) -> None:
        self.states.append(chunk_state(len(self.keys), keys))
        self.bases.append(len(self.keys))
        self.keys += keys

    def take(self, limit: int = 64) -> list[int]:
        """Offsets of the messages that a consumer gets, with as many chunks read as the runs request."""
        while True:
            if self.read < len(self.states) and self.runs.wants_more:
                state = self.states[self.read]
                self.read += 1
                self.runs.push(state, state.free)
                continue
            if (missing := self.runs.missing()) is not None:
                state = self._of(missing)
                state.chunk = any_chunk(state.base, state.count)
            drawn = self.runs.draw(limit)
            if drawn is not None:
                assert drawn[1] and not drawn[1] & ~drawn[0].free
                drawn[0].leased |= drawn[1]
            if drawn is not None or self.read == len(self.states):
                return numbers(drawn)

    def _of(self, offset: int) -> ChunkState:
        return self.states[bisect_right(self.bases, offset) - 1]

    def settle(self, offsets: Sequence[int]) -> None:
        by_state: dict[int, int] = {}
        for offset in offsets:
            base = self._of(offset).base
            by_state[base] = by_state.get(base, 0) | 1 << (offset - base)
        for start, bits in by_state.items():
            state = self._of(start)
            state.leased &= ~bits
            state.settled |= bits
            self.runs.freed(state, bits)

    def give_back(self, offset: int) -> None:
        state = self._of(offset)
        bit = 1 << (offset - state.base)
        state.leased &= ~bit
        self.runs.freed(state, bit)
        self.runs.put_back(state, bit)

    def keys_of(self, offsets: Sequence[int]) -> list[Key]:
        return [self.keys[offset] for offset in offsets]


class StrictLane:
    """Runs over a few chunks, one per string: each letter is a message with that letter as its key."""

    def __init__(self, *chunks: str, key_run_max: int = 32, is_patient: bool = False):
        self.runs = StrictRuns(key_run_max, is_patient=is_patient)
        self.states: list[ChunkState] = []
        for keys in chunks:
            self.push(keys)

    def push(self, keys: str) -> ChunkState:
        base = sum(state.count for state in self.states)
        state = chunk_state(base, [None if key == "-" else key for key in keys])
        self.states.append(state)
        self.runs.push(state, state.full)
        return state

    def take(self, limit: int = 64) -> list[int]:
        """Offsets of the messages that one draw handed out."""
        assert self.runs.missing() is None
        drawn = self.runs.draw(limit)
        if drawn is not None:
            assert drawn[1] and not drawn[1] & ~drawn[0].free
            drawn[0].leased |= drawn[1]
        return numbers(drawn)

    def _of(self, *offsets: int) -> Iterator[tuple[ChunkState, int]]:
        for offset in offsets:
            state = next(s for s in self.states if s.base <= offset < s.base + s.count)
            yield state, 1 << (offset - state.base)

    def settle(self, *offsets: int) -> None:
        for state, bit in self._of(*offsets):
            state.leased &= ~bit
            state.settled |= bit
            self.runs.freed(state, bit)

    def give_back(self, *offsets: int) -> None:
        """Returns the last offset first, as a commit does."""
        for state, bit in reversed(list(self._of(*offsets))):
            state.leased &= ~bit
            self.runs.freed(state, bit)
            self.runs.put_back(state, bit)
